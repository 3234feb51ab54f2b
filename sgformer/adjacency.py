"""The undirected edges of a graph, as CSR arrays that a service worker memory-maps. numpy only.

The constructors establish the invariants: symmetric, no self-loops, no duplicates, sorted neighbour lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgformer.arrays.operations import Indices, expand_runs
from sgformer.errors import GraphError
from sgformer.features import as_array


@dataclass(frozen=True)
class Adjacency:
    """`indices[indptr[v]:indptr[v+1]]` are the neighbours of v."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32] | NDArray[np.int64]

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """The number of undirected edges."""
        return len(self.indices) // 2

    def degrees(self, nodes: Indices) -> Indices:
        """The numbers of neighbours, without the self-loop that the propagation adds."""
        return self.indptr[nodes + 1] - self.indptr[nodes]

    def all_degrees(self) -> Indices:
        return np.diff(self.indptr)

    def neighbors(self, nodes: Indices) -> Indices:
        """The neighbour lists of `nodes`, concatenated; their lengths are `degrees(nodes)`."""
        return self.indices[expand_runs(self.indptr[nodes], self.degrees(nodes))].astype(np.int64)

    def linked(self, left: Indices, right: Indices) -> NDArray[np.bool_]:
        """Whether there is an edge between left[i] and right[i], by bisection of the neighbour list of left[i]."""
        low, high = self.indptr[left], self.indptr[left + 1]
        end = high
        while (open_ := low < high).any():
            middle = (low + high) // 2
            # An empty range may lie at the end of `indices`: it reads position 0 instead, and stays as it is.
            below = self.indices[np.where(open_, middle, 0)] < right
            low = np.where(open_ & below, middle + 1, low)
            high = np.where(open_ & ~below, middle, high)
        inside = low < end
        return inside & (self.indices[np.where(inside, low, 0)] == right) if len(self.indices) else inside

    @classmethod
    def from_edges(cls, edge_index: Any, num_nodes: int) -> Adjacency:
        """From a (2, E) array of node ids, in any direction. Drops duplicates and self-loops (the propagation adds loops).

        Raises:
            GraphError: ids are not integers, out of range, or not in two rows.
        """
        edges = checked_edge_index(edge_index, num_nodes)
        edges = edges[:, edges[0] != edges[1]]
        # An integer per directed edge: its order is by row, then by neighbour.
        keys = np.concatenate([edges[0] * num_nodes + edges[1], edges[1] * num_nodes + edges[0]])
        keys.sort()
        if len(keys):
            keys = keys[np.append(True, keys[1:] != keys[:-1])]
        rows, columns = np.divmod(keys, num_nodes)
        indptr = np.zeros(num_nodes + 1, dtype=np.int64)
        np.cumsum(np.bincount(rows, minlength=num_nodes), out=indptr[1:])
        narrow = num_nodes <= np.iinfo(np.int32).max
        return cls(indptr, columns.astype(np.int32) if narrow else columns)

    @classmethod
    def from_matrix(cls, matrix: Any) -> Adjacency:
        """From a square adjacency matrix, dense or scipy sparse. Every non-zero entry is an edge."""
        if not hasattr(matrix, "tocoo"):
            matrix = as_array(matrix, "adjacency rows", GraphError)
        shape: tuple[int, ...] = tuple(matrix.shape)
        if len(shape) != 2 or shape[0] != shape[1]:
            raise GraphError(f"an adjacency matrix must be square, got shape {shape}")
        if hasattr(matrix, "tocoo"):
            coordinates = matrix.tocoo()
            rows, columns, values = coordinates.row, coordinates.col, coordinates.data
        else:
            rows, columns = np.nonzero(matrix)
            values = matrix[rows, columns]
        if not np.isfinite(values).all():
            raise GraphError("an adjacency matrix must hold finite numbers, got NaN or infinity")
        edges = np.stack([rows[values != 0], columns[values != 0]])
        return cls.from_edges(edges.astype(np.int64), shape[0])

    def with_nodes(self, count: int, edge_index: Any) -> Adjacency:
        """This graph with `count` new nodes N, N+1, ... and their edges: each edge has at least one new end.

        Nothing is sorted again: a new id is larger than every known id, so it goes to the end of a neighbour list.
        """
        known, total = self.num_nodes, self.num_nodes + count
        edges = checked_edge_index(edge_index, total)
        between = edges.max(axis=0) < known if edges.size else np.zeros(0, dtype=bool)
        if between.any():
            left, right = edges[:, np.argmax(between)]
            raise GraphError(f"edge {left} - {right} links two known nodes, expected edges of new nodes ({known} and up)")
        edges = edges[:, edges[0] != edges[1]]
        rows, columns = np.unique(np.concatenate([edges, edges[::-1]], axis=1), axis=1)
        ends = np.where(rows < known, self.indptr[np.minimum(rows, known - 1) + 1], len(self.indices))
        kind = np.int32 if total <= np.iinfo(np.int32).max else np.int64
        indptr = np.concatenate([self.indptr, np.full(count, self.indptr[-1])])
        indptr[1:] += np.cumsum(np.bincount(rows, minlength=total))
        indices: Any = np.insert(self.indices.astype(kind, copy=False), ends, columns)
        return Adjacency(indptr, indices)

    def edge_index(self) -> Indices:
        """Both directions of every edge as a (2, 2E) array, sorted by source."""
        rows = np.repeat(np.arange(self.num_nodes), self.all_degrees())
        return np.stack([rows, self.indices.astype(np.int64)])


def checked_edge_index(edge_index: Any, num_nodes: int) -> Indices:
    edges = as_array(edge_index, "edge_index rows", GraphError)
    if edges.size == 0 and edges.ndim in (1, 2):
        return np.empty((2, 0), dtype=np.int64)
    if edges.ndim != 2 or edges.shape[0] != 2:
        raise GraphError(f"edge_index has shape {edges.shape}, expected (2, number of edges)")
    if edges.dtype.kind not in "iu":
        raise GraphError(f"edge_index holds {edges.dtype}, expected integer node ids")
    outside = (edges < 0) | (edges >= num_nodes)
    if outside.any():
        column = int(np.argmax(outside.any(axis=0)))
        raise GraphError(
            f"edge {column} is {edges[0, column]} - {edges[1, column]}, expected node ids from 0 to {num_nodes - 1}"
        )
    return edges.astype(np.int64)
