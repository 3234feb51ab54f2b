"""States that the processes of one host share: a file that all of them map. Nothing is sent.

Each process writes the rows of its range and reads those of all others. A process of another host cannot map the file: runs
on several hosts exchange rows (`halo`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from sgformer.arrays.torch_operations import shared
from sgformer.full_graph.collectives import broadcast
from sgformer.full_graph.storage import OpenFile, file_size, map_array


class SharedRows:
    """The states of one layer at a time. All processes call the same methods in the same order."""

    def __init__(self, bounds: list[int], open_file: OpenFile) -> None:
        """`bounds`: those of the ranges of all processes. `open_file`: for states that may exceed memory."""
        self._count, self._start, self._open_file = bounds[-1], bounds[dist.get_rank()], open_file
        self._arrays: dict[Any, NDArray[Any]] = {}

    def extended(self, states: NDArray[Any]) -> NDArray[Any]:
        """The states of all nodes, of which `states` are the rows of this process. The next call overwrites the result."""
        key = (states.shape[1], states.dtype)
        if key not in self._arrays:
            self._arrays[key] = map_shared_array(self._open_file, (self._count, states.shape[1]), states.dtype)
        result = self._arrays[key]
        dist.barrier()  # every process has read the states of the last call
        shared(result)[self._start : self._start + len(states)].copy_(shared(states))
        dist.barrier()  # every process has written its rows
        return result


def map_shared_array(open_file: OpenFile, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array that is the same memory in every process. Rank 0 opens the file, and keeps it open until all have it."""
    own = open_file(file_size(shape, dtype)) if dist.get_rank() == 0 else None
    try:
        with Path(broadcast(f"/proc/{os.getpid()}/fd/{own}")).open("r+b") as file:
            array = map_array(file.fileno(), shape, dtype)
        dist.barrier()
    finally:
        if own is not None:
            os.close(own)
    return array
