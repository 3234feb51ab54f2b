"""The states of a GCN layer in a graph that changes: stale after a change, and recomputed when they are read.

d_v is the degree of v plus 1. A node w sends h_w / sqrt(d_w); the *total* of v is the sum, in float64, of what v and its
neighbours send. The aggregate of v is its total divided by sqrt(d_v).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sgformer.arrays.operations import Array, Indices, run_starts
from sgformer.live.changed_adjacency import ChangedAdjacency
from sgformer.live.messages import MessageChanges
from sgformer.live.row_table import ABSENT, RowTable
from sgformer.request_time.inference import InferenceModel
from sgformer.request_time.neighborhood import Links

TOTAL, STATE, UNREAD = range(3)
STALE = -2
PUSH_DEGREE = 1024
"""A change updates the totals of rows with more neighbours than this in place: summing them again takes over 0.1 ms."""
MAX_LOSS = 10.0
"""A total that a change makes smaller by more than this factor is summed again, because it has lost a digit."""
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
    """The outputs of one of the layers 1 .. L-1, over those of the stored graph.

    A row is absent (as in the stored graph), stale, or present with its total. The state of a present row is valid if no
    change has updated its total since the state was computed. Invariant: if a state is valid, then so are those of the row
    and its neighbours in the layer before.
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
        self._table = RowTable(adjacency.num_nodes, ((width,), np.float64), ((width,), model.dtype), ((), np.int64))
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
        """Marks distinct rows, and returns those that were not stale before."""
        fresh: Indices = rows[self._table.slots(rows) != STALE]
        self._table.drop(fresh, STALE)
        return fresh

    def stale(self, rows: Indices) -> Indices:
        """Those of these rows that are stale, each once."""
        stale = (self._table.slots(rows) == STALE).nonzero()[0]
        return self.adjacency.distinct(rows[stale]) if len(stale) else rows[:0]

    def stale_rows(self, limit: int) -> Indices:
        """Stale rows with at most `limit` adjacency entries together. Costs O(N)."""
        rows = self._table.marked(STALE)
        return rows[np.cumsum(self.adjacency.degrees(rows) + 1) <= limit]

    def receive(self, changed: Indices, lists: Indices, messages: Callable[[], MessageChanges]) -> Indices:
        """Adds what a change sends to the totals of hubs, and marks the other rows that it reaches as stale.

        Args:
            changed: the rows that send something else than before, and exist.
            lists: their neighbours.
            messages: what they send. Computed only if they reach a hub.

        Returns:
            The rows whose state was valid before.
        """
        rows = self.adjacency.distinct(np.concatenate([changed, lists]))
        is_hub = self._has_long_total(rows)
        count = int(np.count_nonzero(is_hub))
        if not count:
            return self.mark_stale(rows)
        targets, sources, sent_rows = messages().sent_to(changed, lists, self.adjacency.degrees(changed))
        positions = self.adjacency.positions(targets, rows)
        wanted = is_hub[positions]
        numbers = is_hub.cumsum() - 1
        change = Links.grouped(numbers[positions[wanted]], sources[wanted], count).sum(sent_rows)
        stale = self.mark_stale(rows[~is_hub])
        return np.concatenate([stale, self._push(rows[is_hub], change)])

    def _has_long_total(self, rows: Indices) -> NDArray[np.bool_]:
        """Which rows take long to be summed again, and have a total, maybe in the stored graph."""
        is_long: NDArray[np.bool_] = self.adjacency.degrees(rows) > PUSH_DEGREE
        if np.count_nonzero(is_long):
            slots = self._table.slots(rows)
            is_long &= (slots >= 0) | ((slots == ABSENT) & (rows < self.adjacency.base.num_nodes))
        return is_long

    def _push(self, rows: Indices, change: NDArray[np.float64]) -> Indices:
        """Adds to the totals of distinct rows that have a long one. Returns the rows whose state was valid before.

        A row that nothing has read for as many changes as it has neighbours becomes stale: summing it again, once, is then
        not more work than all these additions were.
        """
        absent = rows[self._table.slots(rows) == ABSENT]
        if len(absent):
            totals = self._base_totals(absent)
            # No state: it is computed at the next read, when the states that it reads are up to date.
            self._table.put(absent, totals, np.zeros(totals.shape, self._model.dtype), np.zeros(len(absent), dtype=np.int64))
        slots = self._table.slots(rows)
        totals, unread = self._table.column(TOTAL)[slots] + change, self._table.column(UNREAD)[slots]
        self._table.column(TOTAL)[slots] = totals
        self._table.column(UNREAD)[slots] = unread + 1
        self._has_unread = True
        lost = np.abs(change).max(axis=1) > MAX_LOSS * np.abs(totals).max(axis=1)
        self._table.drop(rows[lost | (unread > self.adjacency.degrees(rows))], STALE)
        valid_before: Indices = rows[unread == 0]
        return valid_before

    def refresh(self, rows: Indices) -> None:
        """Computes the totals and states of distinct rows."""
        self._store(rows, received(self.adjacency, self._senders, rows))

    def _base_totals(self, rows: Indices) -> Array:
        # A row that is absent has had no change, so its degree is still that of the stored graph.
        aggregates = self._model.rows(self._base_aggregates, rows).astype(np.float64)
        return aggregates * np.sqrt(self.adjacency.base.degrees(rows) + 1.0)[:, None]

    def _read_states(self, rows: Indices) -> Array:
        slots = self._valid_slots(rows)
        if self._has_unread:
            changed = (slots >= 0).nonzero()[0]
            changed = changed[self._table.column(UNREAD)[slots[changed]] > 0]
            if len(changed):
                changed = self.adjacency.distinct(rows[changed])
                self._store(changed, self._table.read(changed, TOTAL, self._base_totals))
        return self._table.read(rows, STATE, lambda others: self._model.rows(self._base_states, others), slots)

    def _read_aggregates(self, rows: Indices) -> Array:
        totals = self._table.read(rows, TOTAL, self._base_totals, self._valid_slots(rows))
        return aggregated(self._model, self.adjacency, rows, totals)

    def _valid_slots(self, rows: Indices) -> Indices:
        """The slots of rows, none of which is stale afterwards."""
        slots = self._table.slots(rows)
        stale = (slots == STALE).nonzero()[0]
        if len(stale):
            self.refresh(self.adjacency.distinct(rows[stale]))
            slots = self._table.slots(rows)
        return slots

    def _store(self, rows: Indices, totals: NDArray[np.float64]) -> None:
        aggregates = aggregated(self._model, self.adjacency, rows, totals)
        own = None if self._apply.reads is None else self._own.take(rows)
        self._table.put(rows, totals, self._apply(aggregates, own), np.zeros(len(rows), dtype=np.int64))


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
    aggregates: Array = (totals / np.sqrt(adjacency.degrees(rows) + 1.0)[:, None]).astype(model.dtype, copy=False)
    return aggregates


def sent(adjacency: ChangedAdjacency, senders: RowView, rows: Indices) -> NDArray[np.float64]:
    """What these rows send to all of their neighbours."""
    messages: NDArray[np.float64] = senders.take(rows) * (1.0 / np.sqrt(adjacency.degrees(rows) + 1.0))[:, None]
    return messages


def received(adjacency: ChangedAdjacency, senders: RowView, rows: Indices) -> NDArray[np.float64]:
    """The totals of these rows. The bits of a total depend on its own neighbours only."""
    lengths = adjacency.degrees(rows) + 1
    if lengths.sum() <= BLOCK_ENTRIES:
        return _summed(adjacency, senders, rows, lengths)
    totals = np.empty((len(rows), senders.width))
    for block in _blocks(lengths):
        totals[block] = _summed(adjacency, senders, rows[block], lengths[block])
    return totals


def _summed(adjacency: ChangedAdjacency, senders: RowView, rows: Indices, lengths: Indices) -> NDArray[np.float64]:
    members = adjacency.with_neighbors(rows)
    if len(members) <= BLOCK_ENTRIES:
        totals: NDArray[np.float64] = np.add.reduceat(sent(adjacency, senders, members), run_starts(lengths), axis=0)
        return totals
    # A single row with a long list.
    total = np.zeros((1, senders.width))
    for start in range(0, len(members), BLOCK_ENTRIES):
        total += sent(adjacency, senders, members[start : start + BLOCK_ENTRIES]).sum(axis=0)
    return total


def _blocks(lengths: Indices) -> Iterator[slice]:
    """Ranges of rows with at most BLOCK_ENTRIES entries together, or of a single row."""
    ends, start, done = np.cumsum(lengths), 0, 0
    while start < len(lengths):
        stop = max(int(np.searchsorted(ends, done + BLOCK_ENTRIES, side="right")), start + 1)
        yield slice(start, stop)
        start, done = stop, int(ends[stop - 1])
