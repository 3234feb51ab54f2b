"""The states of a GCN layer in a graph that changes: stale after a change, and recomputed when they are read.

d_v is the degree of v plus 1. A node w sends h_w / sqrt(d_w); the *total* of v is the sum, in float64, of what v and its
neighbours send. The aggregate of v is its total divided by sqrt(d_v).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sgformer.arrays.operations import Array, Indices
from sgformer.live.changed_adjacency import ChangedAdjacency
from sgformer.live.messages import MessageChanges
from sgformer.live.row_table import ABSENT, RowTable
from sgformer.request_time.inference import InferenceModel
from sgformer.request_time.neighborhood import Links

TOTAL, STATE, UNREAD, PEAK = range(4)
PUSH_DEGREE = 1024
"""A change updates totals of rows of the stored graph with more neighbours than this: to sum these takes over 0.1 ms."""
UPDATES_PER_SUM, ENTRIES_PER_UPDATE = 8, 8
"""Summing a total again costs as much as UPDATES_PER_SUM updates, plus an update per ENTRIES_PER_UPDATE neighbours."""
MAX_UPDATED_ROWS = 8192
"""A change that reaches more rows updates only the totals of hubs, because all answers wait for these updates."""
MAX_LOSS = 10.0
"""A total that updates make smaller by more than this factor is summed again, because it has lost a digit."""
BLOCK_ENTRIES = 8192
"""The number of messages that are summed at a time: 4 MB for 64 hidden units."""


@dataclass(frozen=True)
class RowView:
    """Per-node rows that are computed when they are taken. In `NodeStates` it stands for an (N, hidden) array."""

    adjacency: ChangedAdjacency
    width: int
    take: Callable[[Indices], Array]

    @property
    def shape(self) -> tuple[int, int]:
        return self.adjacency.num_nodes, self.width


class LayerStates:
    """The outputs of one of the layers 1 .. L-1: recomputed rows over the states of the stored graph.

    A row is absent (as in the stored graph), stale, or present with its total. The state of a present row is valid if no
    change has updated its total since the state was computed; if not, a read computes it from the total. Invariant: if a
    state is valid, then so are those of the row and its neighbours in the layer before.
    """

    def __init__(
        self,
        model: InferenceModel,
        number: int,
        adjacency: ChangedAdjacency,
        senders: RowView,
        initial: RowView,
        base: tuple[Array, Array],
    ) -> None:
        """`number` counts from 1; `base` has the states and the aggregates of the stored graph."""
        self._model, self._apply, self.adjacency = model, model.graph_layers[number - 1], adjacency
        self._senders, self._own = senders, initial if self._apply.reads == 0 else senders
        self._base_states, self._base_aggregates = base
        width = model.config.hidden
        columns = ((width,), np.float64), ((width,), model.dtype), ((), np.int64), ((), np.float64)
        self._table = RowTable(adjacency.num_nodes, *columns)
        """The total; the state; the number of updates of the total since the state was read; and the largest square norm of
        the total since it was summed."""
        self._has_unread = False
        """Whether a change has ever updated a total."""
        self.states = RowView(adjacency, width, self._read_states)
        self.aggregates = RowView(adjacency, width, self._read_aggregates)

    def __len__(self) -> int:
        """The number of recomputed rows."""
        return len(self._table)

    @property
    def num_bytes(self) -> int:
        return self._table.num_bytes

    def mark_stale(self, rows: Indices) -> Indices:
        """Marks distinct rows as stale, and returns those that were not stale before."""
        fresh: Indices = rows[self._table.slots(rows) >= ABSENT]
        self._table.hide(fresh)
        return fresh

    def stale(self, rows: Indices) -> Indices:
        """The stale rows among these, each once."""
        stale = (self._table.slots(rows) < ABSENT).nonzero()[0]
        return self.adjacency.distinct(rows[stale]) if len(stale) else rows[:0]

    def stale_rows(self, limit: int) -> Indices:
        """The first stale rows, with at most `limit` adjacency entries together. Costs O(N)."""
        rows = self._table.hidden()
        return rows[np.cumsum(self.adjacency.degrees(rows) + 1) <= limit]

    def receive(self, changed: Indices, lists: Indices, messages: Callable[[], MessageChanges]) -> Indices:
        """Adds what a change sends to existing totals, and marks the other rows that it reaches as stale.

        Args:
            changed: existing rows whose messages or edges changed.
            lists: the neighbours of these rows.
            messages: computes the changes of the messages. Called only if they reach a row with a total.

        Returns:
            The rows whose state was valid before.
        """
        rows = self.adjacency.distinct(np.concatenate([changed, lists]))
        has_total = self._has_total(rows)
        count = int(np.count_nonzero(has_total))
        if not count:
            return self.mark_stale(rows)
        targets, sources, sent_rows = messages().sent_to(changed, lists, self.adjacency.degrees(changed))
        positions = self.adjacency.positions(targets, rows)
        to_total = has_total[positions]
        numbers = has_total.cumsum() - 1
        change = Links.grouped(numbers[positions[to_total]], sources[to_total], count).sum(sent_rows)
        stale = self.mark_stale(rows[~has_total])
        return np.concatenate([stale, self._push(rows[has_total], change)])

    def _has_total(self, rows: Indices) -> NDArray[np.bool_]:
        """Which rows have a total that is worth an update: rows that were read, and hubs of the stored graph."""
        slots = self._table.slots(rows)
        has_total: NDArray[np.bool_] = (slots >= 0) & (len(rows) <= MAX_UPDATED_ROWS)
        others = (~has_total & (slots >= ABSENT)).nonzero()[0]
        hubs = others[self.adjacency.degrees(rows[others]) > PUSH_DEGREE]
        has_total[hubs] = (slots[hubs] >= 0) | (rows[hubs] < self.adjacency.base.num_nodes)
        return has_total

    def _push(self, rows: Indices, change: NDArray[np.float64]) -> Indices:
        """Adds to the totals of distinct rows that have one. Returns the rows whose state was valid before.

        A row that nothing has read for several changes becomes stale: to sum its total again then costs no more than these
        additions did.
        """
        slots = self._table.slots(rows)
        absent = rows[slots == ABSENT]
        if len(absent):
            totals = self._base_totals(absent)
            # No state: it is computed at the next read, when the states that it reads are up to date.
            self._put(absent, totals, np.zeros(totals.shape, self._model.dtype))
            slots = self._table.slots(rows)
        column, totals = self._table.column, self._table.column(TOTAL)[slots] + change
        unread, sizes = column(UNREAD)[slots], np.vecdot(totals, totals)
        peaks = np.maximum(column(PEAK)[slots], sizes)
        column(TOTAL)[slots], column(UNREAD)[slots], column(PEAK)[slots] = totals, unread + 1, peaks
        self._has_unread = True
        is_old = unread >= UPDATES_PER_SUM + self.adjacency.degrees(rows) // ENTRIES_PER_UPDATE
        self._table.hide(rows[is_old | (sizes * MAX_LOSS**2 < peaks)])
        valid_before: Indices = rows[unread == 0]
        return valid_before

    def refresh(self, rows: Indices) -> None:
        """Computes the totals and states of distinct rows."""
        totals = received(self.adjacency, self._senders, rows)
        self._put(rows, totals, self._states_of(rows, totals))

    def _base_totals(self, rows: Indices) -> Array:
        # A row that is absent has had no change, so its degree is still that of the stored graph.
        aggregates = self._model.rows(self._base_aggregates, rows).astype(np.float64)
        return aggregates * np.sqrt(self.adjacency.base.degrees(rows) + 1.0)[:, None]

    def _read_states(self, rows: Indices) -> Array:
        slots = self._valid_slots(rows)
        if self._has_unread:
            unread = (self._table.column(UNREAD).take(slots, mode="clip") * (slots >= 0)).nonzero()[0]
            if len(unread):
                own = slots[unread]
                states = self._states_of(rows[unread], self._table.column(TOTAL).take(own, axis=0))
                self._table.column(STATE)[own] = states
                self._table.column(UNREAD)[own] = 0
        return self._table.read(rows, STATE, lambda others: self._model.rows(self._base_states, others), slots)

    def _read_aggregates(self, rows: Indices) -> Array:
        totals = self._table.read(rows, TOTAL, self._base_totals, self._valid_slots(rows))
        return aggregated(self._model, self.adjacency, rows, totals)

    def _valid_slots(self, rows: Indices) -> Indices:
        """The slots of rows, none of which is stale afterwards."""
        slots = self._table.slots(rows)
        stale = (slots < ABSENT).nonzero()[0]
        if len(stale):
            self.refresh(self.adjacency.distinct(rows[stale]))
            slots = self._table.slots(rows)
        return slots

    def _put(self, rows: Indices, totals: NDArray[np.float64], states: Array) -> None:
        self._table.put(rows, totals, states, np.zeros(len(rows), dtype=np.int64), np.vecdot(totals, totals))

    def _states_of(self, rows: Indices, totals: NDArray[np.float64]) -> Array:
        aggregates = aggregated(self._model, self.adjacency, rows, totals)
        return self._apply(aggregates, None if self._apply.reads is None else self._own.take(rows))


def last_layer(model: InferenceModel, adjacency: ChangedAdjacency, senders: RowView, initial: RowView) -> RowView:
    """The output of the last layer, which is computed at every read."""
    apply = model.graph_layers[-1]
    own = initial if apply.reads == 0 else senders

    def take(rows: Indices) -> Array:
        aggregates = aggregated(model, adjacency, rows, received(adjacency, senders, rows))
        return apply(aggregates, None if apply.reads is None else own.take(rows))

    return RowView(adjacency, model.config.hidden, take)


def aggregated(model: InferenceModel, adjacency: ChangedAdjacency, rows: Indices, totals: NDArray[np.float64]) -> Array:
    """Totals divided by the roots of the degrees, in the type of the model."""
    aggregates: Array = (totals * adjacency.scales(rows)[:, None]).astype(model.dtype, copy=False)
    return aggregates


def sent(adjacency: ChangedAdjacency, senders: RowView, rows: Indices) -> NDArray[np.float64]:
    """What these rows send to all of their neighbours."""
    messages: NDArray[np.float64] = senders.take(rows) * adjacency.scales(rows)[:, None]
    return messages


def received(adjacency: ChangedAdjacency, senders: RowView, rows: Indices) -> NDArray[np.float64]:
    """The totals of these rows. The bits of a total depend on its own neighbours only."""
    members, ends = adjacency.runs(rows)
    totals = np.empty((len(rows), senders.width))
    for block, start in _blocks(ends):
        own = members[start : ends[block.stop - 1]]
        if len(own) <= BLOCK_ENTRIES:
            _sum_runs(adjacency, senders, own, (ends[block] - start).tolist(), totals[block])
        else:
            totals[block] = _long_sum(adjacency, senders, own)
    return totals


def _sum_runs(
    adjacency: ChangedAdjacency, senders: RowView, members: Indices, ends: list[int], totals: NDArray[np.float64]
) -> None:
    """Sums what every run of members sends. A product per run takes half the time of `np.add.reduceat`."""
    scales, states = adjacency.scales(members), senders.take(members).astype(np.float64, copy=False)
    start = 0
    for total, end in zip(totals, ends, strict=True):
        np.dot(scales[start:end], states[start:end], out=total)
        start = end


def _long_sum(adjacency: ChangedAdjacency, senders: RowView, members: Indices) -> NDArray[np.float64]:
    """The total of a single row with a long list."""
    parts = np.empty((-(-len(members) // BLOCK_ENTRIES), senders.width))
    for number, part in enumerate(parts):
        block = members[number * BLOCK_ENTRIES : (number + 1) * BLOCK_ENTRIES]
        _sum_runs(adjacency, senders, block, [len(block)], part[None])
    total: NDArray[np.float64] = parts.sum(axis=0)
    return total


def _blocks(ends: Indices) -> Iterator[tuple[slice, int]]:
    """Ranges of runs with at most BLOCK_ENTRIES entries together, or of a single run, and where they start."""
    first = start = 0
    while first < len(ends):
        stop = len(ends)
        if ends[-1] - start > BLOCK_ENTRIES:
            stop = max(int(ends.searchsorted(start + BLOCK_ENTRIES, side="right")), first + 1)
        yield slice(first, stop), start
        first, start = stop, int(ends[stop - 1])
