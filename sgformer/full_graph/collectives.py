"""What processes that share a graph send each other, by torch.distributed (gloo or nccl). The caller initialises it."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from sgformer.full_graph.storage import Allocate, in_memory

EXCHANGED_ROWS = 65_536
"""Most rows of states that a process sends in one exchange, and most rows that it gathers at once: bounds the memory."""


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def on_one_host() -> bool:
    """True if torchrun has started all processes of the run here, so that they may share memory."""
    return os.environ.get("LOCAL_WORLD_SIZE") == str(world_size())


def exchange(rows: torch.Tensor, sent: list[int], received: list[int], width: int | None = None) -> torch.Tensor:
    """All-to-all of rows: the first sent[0] rows go to process 0, and so on. The result has the same order."""
    shape = (sum(received),) if width is None else (sum(received), width)
    rows = rows.to(communication_device())
    result = rows.new_empty(shape)
    dist.all_to_all_single(result, rows, received, sent)
    return result


def all_gather(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors of all processes, which have one shape, in the order of the processes."""
    tensor = tensor.to(communication_device())
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return [part.cpu() for part in parts]


def gather_rows(rows: NDArray[Any], allocate: Allocate = in_memory) -> NDArray[Any]:
    """The rows of all processes, in the order of the processes; in every process. `allocate` makes the result."""
    if world_size() == 1:
        return rows
    counts = [int(count) for count in all_gather(torch.tensor([len(rows)]))]
    result = allocate("gathered", (sum(counts), *rows.shape[1:]), rows.dtype)
    block = np.zeros((min(max(counts), max(1, EXCHANGED_ROWS // len(counts))), *rows.shape[1:]), dtype=rows.dtype)
    for first in range(0, max(counts), max(1, len(block))):
        own = rows[first : first + len(block)]
        block[: len(own)] = own
        for place, part in zip(parts_of(counts, first, len(block)), all_gather(torch.from_numpy(block)), strict=True):
            result[place] = part.numpy()[: row_count(place)]
    return result


def parts_of(counts: list[int], first: int, count: int) -> list[slice]:
    """Of rows that lie one process after the other, `counts` for each: `count` rows for each from its row `first` on."""
    ends = np.cumsum(counts).tolist()
    starts = [min(end - total + first, end) for end, total in zip(ends, counts, strict=True)]
    return [slice(start, min(start + count, end)) for start, end in zip(starts, ends, strict=True)]


def row_count(rows: slice) -> int:
    return int(rows.stop - rows.start)


def broadcast(value: Any) -> Any:
    """The value of process 0, in every process."""
    if world_size() == 1:
        return value
    content = [value]
    dist.broadcast_object_list(content, src=0, device=communication_device())
    return content[0]


def communication_device() -> torch.device:
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
