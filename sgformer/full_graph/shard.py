"""A shard: the rows that one process computes if several processes share a full-graph forward.

Process r of P computes a range of rows. The sums of all processes are added once, in float64 and in the order of the ranges.
Every GCN layer begins with the states of the neighbours outside the range: processes of one host share memory
(`shared_rows`), those of several hosts send them to each other (`halo`). Processes of one host also hand sparse products
over to each other (`product_shares`).
The processes are those of torch.distributed (gloo or nccl), which the caller has initialised.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from sgformer.adjacency import Adjacency
from sgformer.features import FeatureRows
from sgformer.full_graph.collectives import all_gather, on_one_host, world_size
from sgformer.full_graph.halo import Halo
from sgformer.full_graph.product_shares import ProductShares
from sgformer.full_graph.shared_rows import SharedRows
from sgformer.full_graph.storage import OpenFile, file_in_memory
from sgformer.graph import Graph
from sgformer.sums import SUM_NAMES, AttentionSums

CHUNK_ROWS = 8192
"""Rows of a chunk of the passes."""
ROW_COST = 3
"""The work of a row in a GCN layer without its edges, in units of one edge. Ranges of processes of several hosts have equal
work in a layer, not equally many rows: the processes wait for each other before every layer, which costs more than the
inputs."""


@dataclass(frozen=True)
class Shard:
    """A range of rows of a graph."""

    start: int
    stop: int
    features: FeatureRows
    """Of the rows of the range."""
    adjacency: Adjacency
    """Neighbours are numbered as columns of the extended states. Row and column i are the same node."""
    first_row: int
    """The row of `adjacency` that is the first row of the range. Its other rows follow."""
    degrees: NDArray[np.int64]
    """The degrees of the nodes of all columns."""
    others: SharedRows | Halo | None = None
    """Where the states of other ranges come from; None if there are none."""
    product_shares: ProductShares | None = None
    """The rows of `adjacency` whose products this process computes; None: those of its range."""

    @classmethod
    def of(cls, graph: Graph, open_file: OpenFile = file_in_memory, chunk_rows: int = CHUNK_ROWS) -> Shard:
        """The range of this process; all rows if there is one process. Every process must call it with the same graph.

        Args:
            open_file: opens files for the neighbours and the extended states, which may exceed memory.
            chunk_rows: as for `Passes`: a range has whole chunks, so that the sums do not depend on the number of processes.
        """
        adjacency, count = graph.adjacency, graph.num_nodes
        if world_size() == 1:
            return cls(0, count, graph.features, adjacency, 0, adjacency.all_degrees())

        def ranges(edge_cost: int, row_cost: int) -> list[int]:
            return row_ranges(edge_cost * adjacency.indptr + row_cost * np.arange(count + 1), world_size(), chunk_rows)

        bounds = ranges(0, 1) if on_one_host() else ranges(1, ROW_COST)
        start, stop = bounds[dist.get_rank() : dist.get_rank() + 2]
        features = graph.features[start:stop]
        if on_one_host():
            shares = ProductShares(count, bounds, ranges(1, 0), open_file)
            degrees = adjacency.all_degrees()
            return cls(start, stop, features, adjacency, start, degrees, SharedRows(bounds, open_file), shares)
        halo, indptr = Halo(adjacency, bounds, open_file), adjacency.indptr[start : stop + 1]
        return cls(start, stop, features, Adjacency(indptr - indptr[0], halo.columns), 0, halo.degrees, halo)

    @property
    def num_rows(self) -> int:
        return self.stop - self.start

    def total(self, sums: AttentionSums) -> AttentionSums:
        """The sums over all rows, from those of every range. The same bits in every process."""
        if self.others is None:
            return sums
        shapes = [np.shape(getattr(sums, name)) for name in SUM_NAMES]
        flat = np.concatenate([np.ravel(getattr(sums, name)) for name in SUM_NAMES] + [[float(sums.count)]])
        parts = all_gather(torch.from_numpy(flat.astype(np.float64)))
        return reduce(add, (_unpacked(sums, part.numpy(), shapes) for part in parts))

    def extended(self, states: NDArray[Any]) -> NDArray[Any]:
        """The states of all columns, of which `states` are the rows of this range. The next call overwrites the result."""
        return states if self.others is None else self.others.extended(states)


def row_ranges(work: NDArray[np.int64], count: int, chunk_rows: int) -> list[int]:
    """Bounds of `count` ranges of whole chunks of rows, of about equal work: `work[i]` is that of the first i rows.

    A small graph has fewer chunks than ranges.
    """
    rows = len(work) - 1
    chunks = np.append(np.arange(0, rows, chunk_rows), rows)
    inner = chunks[np.searchsorted(work[chunks], work[-1] * np.arange(1, count) / count)]
    return [0, *inner.tolist(), rows]


def _unpacked(like: AttentionSums, flat: NDArray[np.float64], shapes: list[tuple[int, ...]]) -> AttentionSums:
    values, start = {}, 0
    for name, shape in zip(SUM_NAMES, shapes, strict=True):
        size = int(np.prod(shape))
        values[name] = flat[start : start + size].reshape(shape)[()]
        start += size
    kept = {field.name: getattr(like, field.name) for field in fields(like)}
    return AttentionSums(**kept | values | {"count": round(flat[-1])})
