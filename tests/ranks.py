"""Runs a function in several processes of one torch.distributed group, as torchrun would."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as torch_processes


def run_ranks(function: Callable[..., Any], count: int, *arguments: Any, one_host: bool = False) -> list[Any]:
    """The results of `function(*arguments)` by rank. A function of a test module, which the processes import.

    `one_host`: the processes know that they are on one host, as torchrun tells them, and share memory.
    """
    # A server that has torch loaded: the processes are its forks, which costs less than loading torch in each.
    multiprocessing.get_context("forkserver").set_forkserver_preload(["torch.distributed", "sklearn.metrics", "pyarrow"])
    with tempfile.TemporaryDirectory() as folder:
        torch_processes.start_processes(
            _work, (count, folder, function, arguments, one_host), count, start_method="forkserver"
        )
        return [pickle.loads((Path(folder) / str(rank)).read_bytes()) for rank in range(count)]  # noqa: S301  # our own


def _work(
    rank: int, count: int, folder: str, function: Callable[..., Any], arguments: tuple[Any, ...], one_host: bool
) -> None:
    torch.set_num_threads(1)
    os.environ["LOCAL_WORLD_SIZE"] = str(count if one_host else 1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=count)
    try:
        (Path(folder) / str(rank)).write_bytes(pickle.dumps(function(*arguments)))
    finally:
        dist.destroy_process_group()
