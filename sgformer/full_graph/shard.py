"""A shard: the rows that one process computes if several processes share a full-graph forward.

Process r of P computes a range of rows. The sums of all processes are added once, in float64 and in the order of the ranges.
Every GCN layer begins with one exchange: each process receives the states of the neighbours outside its range, its halo. An
exchange has rounds, so that memory holds a bounded part of a halo, which may be as large as the graph.
The processes are those of torch.distributed (gloo or nccl), which the caller has initialised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property, reduce
from operator import add
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from sgformer.adjacency import Adjacency
from sgformer.graph import Graph
from sgformer.sums import SUM_NAMES, AttentionSums

CHUNK_ROWS = 8192
"""Rows of a chunk of the passes."""
BLOCK_ENTRIES = 4_000_000
"""Most adjacency entries of a block."""
EXCHANGED_ROWS = 65_536
"""Most rows of states that a process sends in one exchange, and most rows that it gathers at once: bounds the memory."""
ROW_COST = 8
"""The work of a row without its edges, in units of one edge. Ranges have equal work, not equally many rows."""

Allocate: TypeAlias = Callable[[str, tuple[int, ...], np.dtype[Any]], NDArray[Any]]
"""Makes a writable array for a result, e.g. a memory-mapped file."""


def in_memory(_name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.empty(shape, dtype=dtype)


@dataclass(frozen=True)
class Shard:
    """A range of rows. `graph` has their features, and neighbours numbered as `columns` of the extended states."""

    start: int
    stop: int
    graph: Graph
    degrees: NDArray[np.int64]
    """The degrees of the nodes of all columns: the rows of the range, then the halo."""
    halo: NDArray[np.int64]
    """Rows of other ranges, ascending."""
    bounds: tuple[int, ...]
    """The bounds of the ranges of all processes."""
    allocate: Allocate

    @classmethod
    def of(cls, graph: Graph, allocate: Allocate = in_memory, chunk_rows: int = CHUNK_ROWS) -> Shard:
        """The range of this process; all rows if there is one process. Every process must call it with the same graph.

        Args:
            allocate: makes the arrays of the neighbours and of the extended states, which may exceed memory.
            chunk_rows: as for `Passes`: a range has whole chunks, so that the sums do not depend on the number of processes.
        """
        adjacency, count = graph.adjacency, graph.num_nodes
        if world_size() == 1:
            return cls(0, count, graph, adjacency.all_degrees(), np.empty(0, np.int64), (0, count), allocate)
        bounds = row_ranges(adjacency, world_size(), chunk_rows)
        start, stop = bounds[dist.get_rank() : dist.get_rank() + 2]
        indptr = adjacency.indptr[start : stop + 1]
        entries = range(int(indptr[0]), int(indptr[-1]), BLOCK_ENTRIES)
        is_needed = np.zeros(count, dtype=bool)
        for first in entries:
            is_needed[adjacency.indices[first : min(first + BLOCK_ENTRIES, entries.stop)]] = True
        is_needed[start:stop] = False
        halo = np.flatnonzero(is_needed)
        column_of = np.zeros(count, dtype=adjacency.indices.dtype)
        column_of[start:stop] = np.arange(stop - start)
        column_of[halo] = stop - start + np.arange(len(halo))
        columns = allocate("neighbors", (len(range(entries.start, entries.stop)), 1), column_of.dtype)[:, 0]
        for first in entries:
            last = min(first + BLOCK_ENTRIES, entries.stop)
            columns[first - entries.start : last - entries.start] = column_of[adjacency.indices[first:last]]
        part = Graph(graph.features[start:stop], Adjacency(indptr - indptr[0], columns))
        degrees = np.concatenate([np.diff(indptr), adjacency.degrees(halo)])
        return cls(start, stop, part, degrees, halo, tuple(bounds), allocate)

    @property
    def num_rows(self) -> int:
        return self.stop - self.start

    def total(self, sums: AttentionSums) -> AttentionSums:
        """The sums over all rows, from those of every range. The same bits in every process."""
        if world_size() == 1:
            return sums
        shapes = [np.shape(getattr(sums, name)) for name in SUM_NAMES]
        flat = np.concatenate([np.ravel(getattr(sums, name)) for name in SUM_NAMES] + [[float(sums.count)]])
        parts = all_gather(torch.from_numpy(flat.astype(np.float64)))
        return reduce(add, (_unpacked(sums, part.numpy(), shapes) for part in parts))

    def extended(self, states: NDArray[Any]) -> NDArray[Any]:
        """The states of the rows of this range, then those of the halo, which the other processes send.

        The next call overwrites the result.
        """
        if world_size() == 1:
            return states
        width = states.shape[1]
        key = (width, states.dtype)
        if key not in self._buffers:
            self._buffers[key] = self.allocate("extended", (len(self.degrees), width), states.dtype)
        result = self._buffers[key]
        result[: len(states)] = states
        part = max(1, EXCHANGED_ROWS // world_size())
        for first in range(0, self._largest_part, part):
            sent, received = (_parts(counts, first, part) for counts in (self._sent_counts, self._received_counts))
            rows = torch.from_numpy(states[np.concatenate([self._sent_rows[rows] for rows in sent])])
            sizes = [*map(_length, received)]
            answers = exchange(rows, [*map(_length, sent)], sizes, width).cpu().numpy()
            for place, answer in zip(received, np.split(answers, np.cumsum(sizes)[:-1]), strict=True):
                result[len(states) :][place] = answer
        return result

    @cached_property
    def _buffers(self) -> dict[Any, NDArray[Any]]:
        """For the extended states of one layer at a time."""
        return {}

    @cached_property
    def _received_counts(self) -> list[int]:
        """Rows of the halo by the process that computes them."""
        return [int(count) for count in np.diff(np.searchsorted(self.halo, self.bounds))]

    @cached_property
    def _largest_part(self) -> int:
        """The most rows that one process sends to another, over all processes, which therefore make equally many rounds."""
        return max(int(part) for part in all_gather(torch.tensor([max(self._received_counts)])))

    @cached_property
    def _sent_counts(self) -> list[int]:
        counts = torch.tensor(self._received_counts)
        return exchange(counts, [1] * len(counts), [1] * len(counts)).tolist()

    @cached_property
    def _sent_rows(self) -> NDArray[np.int64]:
        """Rows of this range that other processes need, by process."""
        wanted = exchange(torch.from_numpy(self.halo), self._received_counts, self._sent_counts)
        return wanted.cpu().numpy() - self.start


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def row_ranges(adjacency: Adjacency, count: int, chunk_rows: int) -> list[int]:
    """Bounds of `count` ranges of whole chunks of rows, of about equal work. A small graph has fewer chunks than ranges."""
    work = adjacency.indptr + ROW_COST * np.arange(adjacency.num_nodes + 1)
    chunks = np.append(np.arange(0, adjacency.num_nodes, chunk_rows), adjacency.num_nodes)
    inner = chunks[np.searchsorted(work[chunks], work[-1] * np.arange(1, count) / count)]
    return [0, *inner.tolist(), adjacency.num_nodes]


def _parts(counts: list[int], first: int, count: int) -> list[slice]:
    """Of rows that lie one process after the other, `counts` for each: `count` rows for each from its row `first` on."""
    ends = np.cumsum(counts).tolist()
    starts = [min(end - total + first, end) for end, total in zip(ends, counts, strict=True)]
    return [slice(start, min(start + count, end)) for start, end in zip(starts, ends, strict=True)]


def _length(rows: slice) -> int:
    return int(rows.stop - rows.start)


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
        for place, part in zip(_parts(counts, first, len(block)), all_gather(torch.from_numpy(block)), strict=True):
            result[place] = part.numpy()[: _length(place)]
    return result


def broadcast(value: Any) -> Any:
    """The value of process 0, in every process."""
    if world_size() == 1:
        return value
    content = [value]
    dist.broadcast_object_list(content, src=0, device=communication_device())
    return content[0]


def communication_device() -> torch.device:
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


def _unpacked(like: AttentionSums, flat: NDArray[np.float64], shapes: list[tuple[int, ...]]) -> AttentionSums:
    values, start = {}, 0
    for name, shape in zip(SUM_NAMES, shapes, strict=True):
        size = int(np.prod(shape))
        values[name] = flat[start : start + size].reshape(shape)[()]
        start += size
    kept = {field.name: getattr(like, field.name) for field in fields(like)}
    return AttentionSums(**kept | values | {"count": round(flat[-1])})
