"""The edges of a graph that changes: the lists of rows whose edges changed, over the adjacency of the stored graph."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgformer.adjacency import Adjacency, NeighborLists, bisect_runs
from sgformer.arrays.operations import Indices, expand_runs, run_starts
from sgformer.live.row_table import RowNumbers, RowTable, RowValues, grown

START, CAPACITY, REMOVED = range(3)
"""The columns of the table of rows with a list of their own: where the list starts in the pool, for how many neighbours it
has room, and whether the row was removed."""
ROW_BITS = 32
"""A directed edge as an integer: its source, or the position of its source, shifted left by ROW_BITS, plus its target."""


@dataclass(frozen=True)
class DirectedEdges:
    """Both directions of every edge, sorted by source."""

    sources: Indices
    targets: Indices

    @classmethod
    def of(cls, edges: Indices) -> DirectedEdges:
        """From a (2, m) array of undirected edges, which may repeat."""
        if not edges.size:
            return cls(edges[0], edges[0])
        both = np.concatenate([edges, edges[::-1]], axis=1)
        keys = np.unique((both[0] << ROW_BITS) | both[1])
        return cls(keys >> ROW_BITS, keys & ((1 << ROW_BITS) - 1))

    def keys(self, rows: Indices) -> Indices:
        """An integer per edge (see ROW_BITS), with the position of its source in the sorted `rows`."""
        return (np.searchsorted(rows, self.sources) << ROW_BITS) | self.targets


class ChangedAdjacency:
    """Has the methods of `NeighborLists`. Rows are never reused: a removed row stays as a row without neighbours.

    A row whose edges change gets a list of its own in `_pool`, with room to grow, so the lists of other rows stay in place.
    Rebuilding a list costs a pass over it, but so does marking the states of all these neighbours as stale.
    """

    def __init__(self, base: NeighborLists) -> None:
        if isinstance(base, Adjacency):  # as plain arrays: every slice of a memory map costs microseconds
            indices: Any = np.asarray(base.indices)
            base = Adjacency(np.asarray(base.indptr), indices)
        self.base = base
        self.num_nodes = base.num_nodes
        self.num_edges = base.num_edges
        self.num_removed: int = base.num_removed if isinstance(base, ChangedAdjacency) else 0
        self._table = RowTable(base.num_nodes, *[((), np.int64)] * 2, ((), np.bool_))
        self._degrees = RowNumbers(base.num_nodes)
        """The degrees of rows with a list of their own, and of rows that were read."""
        self._scales = RowValues(base.num_nodes, np.float64)
        """The scales of rows with a list of their own, and of rows that were read."""
        self._pool = np.empty(1, dtype=np.int64)
        self._pool_used = 0
        self._last_position = RowNumbers(base.num_nodes)
        """Working memory of `distinct` and `positions`."""
        self._kept_runs: tuple[bytes, tuple[Indices, Indices]] = b"", (self._pool[:0], self._pool[:0])
        """The rows and the result of the last call of `runs` with `keep`."""

    def degrees(self, nodes: Indices) -> Indices:
        degrees = self._degrees.get(nodes)
        unread = (degrees < 0).nonzero()[0]
        if len(unread):
            rows = nodes[unread]
            degrees[unread] = self.base.degrees(rows)
            self._degrees.set(rows, degrees[unread])
        return degrees

    def degree(self, row: int) -> int:
        """`degrees` of one row, faster."""
        degree = self._degrees.get_one(row)
        return degree if degree >= 0 else int(self.degrees(np.array([row]))[0])

    def scales(self, nodes: Indices) -> NDArray[np.float64]:
        """1 / sqrt(d), with the self-loop in the degree d: the factor of what a node sends to its neighbours."""
        scales = self._scales.get(nodes)
        if np.count_nonzero(scales) < len(nodes):
            unread = (scales == 0).nonzero()[0]
            scales[unread] = (self.degrees(nodes[unread]) + 1.0) ** -0.5
            self._scales.set(nodes[unread], scales[unread])
        return scales

    def neighbors(self, nodes: Indices) -> Indices:
        slots = self._table.slots(nodes)
        in_base = slots < 0
        unchanged = in_base.nonzero()[0]
        if len(unchanged) == len(nodes):
            return self.base.neighbors(nodes)
        degrees = self.degrees(nodes)
        # A row without a list of its own gets wrong entries here; the next lines replace them.
        lists = self._pool.take(expand_runs(self._table.column(START).take(slots, mode="clip"), degrees), mode="clip")
        if len(unchanged):
            lists[in_base.repeat(degrees)] = self.base.neighbors(nodes[unchanged])
        return lists

    def with_neighbors(self, rows: Indices, keep: bool = False) -> Indices:
        """Every row, followed by its neighbours. The caller must not write to the result.

        `keep`: remembers the result, which an answer needs twice: to refresh the states that it reads, and to read them.
        """
        return self.runs(rows, keep)[0]

    def runs(self, rows: Indices, keep: bool = False) -> tuple[Indices, Indices]:
        """`with_neighbors`, and where the run of each row ends."""
        key = rows.tobytes()
        if key == self._kept_runs[0]:
            return self._kept_runs[1]
        slots, lengths = self._table.slots(rows), self.degrees(rows) + 1
        ends = lengths.cumsum()
        starts = ends - lengths
        if np.count_nonzero(slots < 0):
            is_neighbor = np.ones(int(lengths.sum()), dtype=bool)
            is_neighbor[starts] = False
            members = np.empty(len(is_neighbor), dtype=np.int64)
            members[is_neighbor] = self.neighbors(rows)
        else:  # also takes the entry before each list, which the row itself then replaces
            members = self._pool.take(expand_runs(self._table.column(START)[slots] - 1, lengths), mode="clip")
        members[starts] = rows
        if keep:
            self._kept_runs = key, (members, ends)
        return members, ends

    def linked(self, left: Indices, right: Indices) -> NDArray[np.bool_]:
        slots = self._table.slots(left)
        own = slots >= 0
        linked = np.empty(len(left), dtype=bool)
        starts = self._table.column(START)[slots[own]]
        linked[own] = bisect_runs(self._pool, starts, starts + self.degrees(left[own]), right[own])
        # A new row has a list of its own, so it is not among these left ends. As a right end, it is in no list of the base.
        linked[~own] = self.base.linked(left[~own], right[~own])
        return linked

    def has_edge(self, left: int, right: int) -> bool:
        """`linked` for one pair, faster."""
        slot = self._table.slot(left)
        if slot < 0:
            return self.base.has_edge(left, right)
        start = self._table.column(START)[slot]
        run = self._pool[start : start + self._degrees.get_one(left)]
        position = run.searchsorted(right)
        return bool(position < len(run) and run[position] == right)

    def is_removed(self, nodes: Indices) -> NDArray[np.bool_]:
        """For rows from 0 to num_nodes - 1."""
        if not self.num_removed:
            return np.zeros(len(nodes), dtype=bool)
        in_base = self.base.is_removed if isinstance(self.base, ChangedAdjacency) else partial(np.zeros_like, dtype=bool)
        removed: NDArray[np.bool_] = self._table.read(nodes, REMOVED, in_base)
        return removed

    def has_row(self, row: int) -> bool:
        """False if the row was removed, or does not exist yet."""
        if not self.num_removed:
            return 0 <= row < self.num_nodes
        slot = self._table.slot(row)
        if slot >= 0:
            return not self._table.column(REMOVED)[slot]
        return self.base.has_row(row) if isinstance(self.base, ChangedAdjacency) else 0 <= row < self.base.num_nodes

    def distinct(self, rows: Indices) -> Indices:
        """The distinct rows of a list, without sorting."""
        positions = np.arange(len(rows))
        self._last_position.set(rows, positions)
        distinct: Indices = rows[self._last_position.get(rows) == positions]
        return distinct

    def positions(self, rows: Indices, distinct: Indices) -> Indices:
        """The position of every row in `distinct`, which has each of them once."""
        self._last_position.set(distinct, np.arange(len(distinct)))
        return self._last_position.get(rows)

    def live_rows(self) -> Indices:
        """All rows that are not removed. Costs O(N)."""
        return np.flatnonzero(~self.is_removed(np.arange(self.num_nodes)))

    def change(self, num_added: int, removed_rows: Indices, added: DirectedEdges, removed: DirectedEdges) -> None:
        """Adds and removes rows and edges.

        No edge of `added` may be present; every edge of `removed` must be. `removed` must have all edges of removed rows.
        """
        new_rows = np.arange(self.num_nodes, self.num_nodes + num_added)
        self._kept_runs = b"", (new_rows[:0], new_rows[:0])
        self._table.put(new_rows, *[np.zeros(num_added, dtype=np.int64)] * 3)
        self._degrees.set(new_rows, 0)
        self.num_nodes += num_added
        self.num_edges += (len(added.sources) - len(removed.sources)) // 2
        self.num_removed += len(removed_rows)
        rows = np.unique(np.concatenate([new_rows, removed_rows, added.sources, removed.sources]))
        is_removed = np.zeros(len(rows), dtype=bool)
        is_removed[np.searchsorted(rows, removed_rows)] = True
        self._write(rows, *self._merged(rows, added, removed), is_removed)

    @property
    def num_bytes(self) -> int:
        tables = self._table, self._degrees, self._scales, self._last_position
        return self._pool.nbytes + sum(table.num_bytes for table in tables)

    def __len__(self) -> int:
        """The number of rows that have a list of their own."""
        return len(self._table)

    def changed_rows(self) -> Indices:
        """The rows that have a list of their own, removed ones included; ascending."""
        return self._table.rows()

    def _merged(self, rows: Indices, added: DirectedEdges, removed: DirectedEdges) -> tuple[Indices, Indices]:
        """The new lists of these rows, concatenated, and their lengths."""
        keys = (np.repeat(np.arange(len(rows)), self.degrees(rows)) << ROW_BITS) | self.neighbors(rows)
        if len(removed.sources):
            keys = np.delete(keys, keys.searchsorted(removed.keys(rows)))
        keys = np.concatenate([keys, added.keys(rows)])
        keys.sort(kind="stable")  # linear for two sorted runs
        return keys & ((1 << ROW_BITS) - 1), np.bincount(keys >> ROW_BITS, minlength=len(rows))

    def _write(self, rows: Indices, lists: Indices, lengths: Indices, removed: NDArray[np.bool_]) -> None:
        starts, capacities = (self._table.read(rows, kind, np.zeros_like) for kind in (START, CAPACITY))
        moved = (lengths > capacities).nonzero()[0]
        if len(moved):
            sizes = lengths[moved]
            capacities[moved] = sizes = sizes + sizes // 4 + 4
            starts[moved] = self._pool_used + run_starts(sizes)
            self._pool_used += int(sizes.sum())
            self._pool = grown(self._pool, self._pool_used)
        self._pool[expand_runs(starts, lengths)] = lists
        self._table.put(rows, starts, capacities, removed)
        self._degrees.set(rows, lengths)
        self._scales.set(rows, (lengths + 1.0) ** -0.5)
