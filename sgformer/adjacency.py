"""The undirected edges of a graph, as CSR arrays that a service worker memory-maps. numpy only.

`from_edges` and `from_matrix` establish the invariants: symmetric, no self-loops, no duplicates, sorted neighbour lists.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sgformer.arrays.operations import Indices, expand_runs
from sgformer.edge_list import EdgeListCounts
from sgformer.errors import GraphError
from sgformer.features import as_array


@dataclass(frozen=True)
class Adjacency:
    """`indices[indptr[v]:indptr[v+1]]` are the neighbours of v."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32] | NDArray[np.int64]
    edge_list: EdgeListCounts | None = field(default=None, compare=False, repr=False)
    """Counts of the list that `from_edges` read; None if the arrays were not made from a list."""

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """The number of undirected edges."""
        return len(self.indices) // 2

    def degrees(self, nodes: Indices) -> Indices:
        """The number of neighbours of each node, without the self-loop that the propagation adds."""
        return self.indptr[nodes + 1] - self.indptr[nodes]

    def all_degrees(self) -> Indices:
        return np.diff(self.indptr)

    def neighbors(self, nodes: Indices) -> Indices:
        """The neighbour lists of `nodes`, concatenated; their lengths are `degrees(nodes)`."""
        return self.indices[expand_runs(self.indptr[nodes], self.degrees(nodes))].astype(np.int64)

    def linked(self, left: Indices, right: Indices) -> NDArray[np.bool_]:
        """Whether there is an edge between left[i] and right[i], by bisection of the neighbour list of left[i]."""
        return bisect_runs(self.indices, self.indptr[left], self.indptr[left + 1], right)

    def has_edge(self, left: int, right: int) -> bool:
        """`linked` for one pair, faster."""
        run = self.indices[self.indptr[left] : self.indptr[left + 1]]
        if right >= self.num_nodes:
            return False
        position = run.searchsorted(run.dtype.type(right))  # another type would copy the list
        return bool(position < len(run) and run[position] == right)

    @classmethod
    def from_edges(cls, edge_index: Any, num_nodes: int) -> Adjacency:
        """From a (2, E) array of edges in any direction. Drops duplicates and self-loops (the propagation adds loops).

        `edge_list` of the result counts what was dropped, and the edges that have one direction only.

        Raises:
            GraphError: ids are not integers, out of range, or not in two rows.
        """
        edges = checked_edge_index(edge_index, num_nodes)
        entries, pairs = edges.shape[1], edges[:, edges[0] != edges[1]]
        # One integer per directed edge, which sorts by row, then by neighbour.
        directed = _sorted_set(pairs[0] * num_nodes + pairs[1])
        rows, columns = np.divmod(directed, num_nodes)
        keys = _sorted_set(np.concatenate([directed, columns * num_nodes + rows]))
        one_way = len(keys) - len(directed)
        counts = EdgeListCounts(entries, one_way, pairs.shape[1] - len(directed), entries - pairs.shape[1])
        rows, columns = np.divmod(keys, num_nodes)
        indptr = np.zeros(num_nodes + 1, dtype=np.int64)
        np.cumsum(np.bincount(rows, minlength=num_nodes), out=indptr[1:])
        narrow = num_nodes <= np.iinfo(np.int32).max
        return cls(indptr, columns.astype(np.int32) if narrow else columns, counts)

    @classmethod
    def from_matrix(cls, matrix: Any) -> Adjacency:
        """From a square adjacency matrix of 0 and 1, dense or scipy sparse."""
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
        if (values[values != 0] != 1).any():
            raise GraphError(
                f"an adjacency matrix must hold 0 and 1, got {values[(values != 0) & (values != 1)][0]}: edges have no "
                "weights in this model; pass matrix != 0 to use the edges alone"
            )
        return cls.from_edges(edges.astype(np.int64), shape[0])

    def with_nodes(self, count: int, edge_index: Any) -> Adjacency:
        """This graph with `count` new nodes N, N+1, ... and their edges: each edge has at least one new end.

        The stored lists are not sorted again: a new id is larger than every known id, so it goes to the end of a list.
        """
        known, total = self.num_nodes, self.num_nodes + count
        edges = checked_edge_index(edge_index, total)
        between = edges.max(axis=0) < known if edges.size else np.zeros(0, dtype=bool)
        if between.any():
            left, right = edges[:, np.argmax(between)]
            raise GraphError(f"edge {left} - {right} joins two known nodes, expected edges of new nodes ({known} and up)")
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


class NeighborLists(Protocol):
    """The edges as the code for requests reads them: an `Adjacency`, or a graph that changes (`sgformer.live`)."""

    @property
    def num_nodes(self) -> int: ...
    @property
    def num_edges(self) -> int: ...
    def degrees(self, nodes: Indices, /) -> Indices: ...
    def neighbors(self, nodes: Indices, /) -> Indices: ...
    def linked(self, left: Indices, right: Indices, /) -> NDArray[np.bool_]: ...
    def has_edge(self, left: int, right: int, /) -> bool: ...


def bisect_runs(values: NDArray[np.integer[Any]], low: Indices, high: Indices, wanted: Indices) -> NDArray[np.bool_]:
    """Whether wanted[i] is in the sorted run values[low[i]:high[i]]."""
    end = high
    while (unfinished := low < high).any():
        middle = (low + high) // 2
        # An empty range may lie at the end of `values`: it reads position 0 instead, and stays as it is.
        below = values[np.where(unfinished, middle, 0)] < wanted
        low = np.where(unfinished & below, middle + 1, low)
        high = np.where(unfinished & ~below, middle, high)
    inside = low < end
    return inside & (values[np.where(inside, low, 0)] == wanted) if len(values) else inside


def _sorted_set(keys: Indices) -> Indices:
    """The distinct keys in ascending order. Sorts `keys` in place: np.unique would copy them."""
    keys.sort()
    return keys[np.append(True, keys[1:] != keys[:-1])] if len(keys) else keys


def checked_edge_index(edge_index: Any, num_nodes: int) -> Indices:
    edges = as_array(edge_index, "edge_index rows", GraphError)
    if edges.size == 0 and edges.ndim in (1, 2):
        return np.empty((2, 0), dtype=np.int64)
    if edges.ndim != 2 or edges.shape[0] != 2:
        hint = "; transpose it" if edges.ndim == 2 and edges.shape[1] == 2 else ""
        raise GraphError(f"edge_index has shape {edges.shape}, expected (2, number of edges){hint}")
    if edges.dtype.kind not in "iu":
        raise GraphError(f"edge_index holds {edges.dtype}, expected integer node ids")
    outside = (edges < 0) | (edges >= num_nodes)
    if outside.any():
        column = int(np.argmax(outside.any(axis=0)))
        raise GraphError(
            f"edge {column} is {edges[0, column]} - {edges[1, column]}, expected node ids from 0 to {num_nodes - 1}"
        )
    return edges.astype(np.int64)
