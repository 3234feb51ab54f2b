"""A graph that changes while it is served, over an immutable stored graph (docs/mathematics.md section 5).

A change updates the edges, the inputs, the sums and some totals of the first layer, and marks all other states of layers
1 .. L-1 that it affects as stale; a read recomputes the stale states that it needs. The last layer is computed at every
read. So a change mostly walks neighbour lists, and a state that many changes affect is recomputed once, or never.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgformer.adjacency import Adjacency, NeighborLists
from sgformer.arrays.operations import Array, Indices
from sgformer.errors import ChangeError, NewNodeError, UnknownNodeError
from sgformer.features import MappedRows
from sgformer.graph import Graph
from sgformer.live.changed_adjacency import ChangedAdjacency, DirectedEdges
from sgformer.live.changes import Changes, Draft, sums_of
from sgformer.live.layer_states import LayerStates, RowView, last_layer, sent
from sgformer.live.messages import MessageChanges
from sgformer.live.row_table import RowTable
from sgformer.request_time.extension import ExtendedAnswers, Mode, extend
from sgformer.request_time.inference import Answers, InferenceModel, checked_ids
from sgformer.request_time.new_nodes import NewNodes
from sgformer.states import NodeStates
from sgformer.sums import AttentionSums

INPUTS, INITIAL = range(2)
MAX_CANCELLATION = 1e4
"""If a norm or the count of the sums falls below its largest value by this factor, they are computed again from all rows."""
CHUNK_ROWS = 8192
SAMPLE_ROWS = 1024
MAX_INPUT_RATIO = 1e4
"""Inputs of a change that exceed those of the stored graph by this factor are refused: float32 answers would lose digits."""


@dataclass(frozen=True)
class Applied:
    """The extent of a change."""

    rows: int
    """Nodes that were added, removed or changed, and the ends of changed edges."""
    states: int
    """States of layers 1 .. L-1 that the change affects and that were not stale before."""
    entries: int
    """Adjacency entries that were read to find these states."""


@dataclass(frozen=True)
class OverlaySize:
    """The difference from the stored graph, which compaction removes."""

    nodes: int
    """Rows whose edges changed, new rows included."""
    features: int
    """Rows whose features changed, new rows included."""
    states: int
    """Recomputed states."""
    num_bytes: int


class ChangingGraph:
    """A graph, its states and its sums after any number of changes. `extend` reads them like those of a snapshot.

    Rows are numbered as in the stored graph; a new node gets the next number, and the number of a removed node is not used
    again. Reads recompute stale states, so they change the object: calls must not overlap, not even reads. The model runs on
    numpy. The arrays of the stored graph must stay as they are.
    """

    def __init__(self, model: InferenceModel, states: NodeStates, sums: AttentionSums, adjacency: NeighborLists) -> None:
        self.model, self.sums, self.version = model, sums, 0
        self.adjacency = ChangedAdjacency(adjacency)
        self._base, self._peaks = states, _magnitudes(sums)
        self._attention: Callable[[Array], Array] | None = None
        """The attention by `sums`, made for the first answer that needs it."""
        config, row = model.config, ((model.config.hidden,), model.dtype)
        self._inputs = RowTable(self.adjacency.num_nodes, *([row] if config.gnn_input == "shared" else [row, row]))
        inputs = RowView(self.adjacency, config.hidden, self._read_inputs)
        initial = inputs
        if config.gnn_input != "shared":
            initial = RowView(self.adjacency, config.hidden, self._read_initial)
        self._layers: list[LayerStates] = []
        views = [initial]
        for number in range(1, config.layers):
            base = states.layers[number], states.aggregates[number - 1]
            self._layers.append(LayerStates(model, number, self.adjacency, views[-1], initial, base))
            views.append(self._layers[-1].states)
        if config.layers:
            views.append(last_layer(model, self.adjacency, views[-1], initial))
        self.states = NodeStates(inputs, tuple(views), tuple(layer.aggregates for layer in self._layers))

    @property
    def num_nodes(self) -> int:
        """The number of nodes that are not removed."""
        return self.adjacency.num_nodes - self.adjacency.num_removed

    @cached_property
    def max_input(self) -> float:
        """The largest Z0 or GCN input that a change may have, as a multiple of those in a sample of the stored graph."""
        rows = np.arange(min(SAMPLE_ROWS, self._base.num_nodes))
        sample = (self.model.rows(part, rows) for part in (self._base.inputs, self._base.layers[0]))
        return MAX_INPUT_RATIO * max(1.0, *(float(np.abs(part).max()) for part in sample))

    @property
    def size(self) -> OverlaySize:
        num_bytes = self.adjacency.num_bytes + self._inputs.num_bytes + sum(layer.num_bytes for layer in self._layers)
        return OverlaySize(len(self.adjacency), len(self._inputs), sum(map(len, self._layers)), num_bytes)

    def changed_rows(self) -> Indices:
        """Nodes that were added, or whose edges or features changed; ascending."""
        rows = np.union1d(self.adjacency.changed_rows(), self._inputs.rows())
        return rows[~self.adjacency.is_removed(rows)]

    def close(self) -> None:
        """Drops all arrays. They are in reference cycles, which would keep the maps of files until a garbage collection."""
        for part in (*self._layers, self):
            vars(part).clear()

    def draft(self) -> Draft:
        """Collects operations for `apply` or `what_if`."""
        return Draft(self)

    def known(self, rows: Indices) -> Answers:
        """Answers for nodes of the graph as it is now, bitwise independent of the other rows of the call.

        Raises:
            UnknownNodeError: a row that is not in the graph, or was removed.
        """
        rows = checked_ids(rows, self.adjacency.num_nodes)
        removed = self.adjacency.is_removed(rows)
        if removed.any():
            row = int(rows[removed][0])
            raise UnknownNodeError(f"node {row} was removed from the graph", row)
        inputs = self.states.inputs.take(rows)
        if self._attention is None:
            self._attention = self.model.attention(self.sums)
        return self.model.answer(inputs, self._attention(inputs), self.states.layers[-1].take(rows))

    def extended(self, new: NewNodes, mode: Mode = "exact", max_recompute: int | None = None) -> ExtendedAnswers:
        """`extend` on the graph as it is now. `new` must be built with `num_nodes=adjacency.num_nodes`.

        Raises:
            NewNodeError: also if a neighbour was removed.
        """
        self.check_neighbors(new)
        return extend(self.model, self.states, self.sums, self.adjacency, new, mode, max_recompute)

    def refresh(self, rows: Indices, limit: int) -> bool:
        """Computes stale states of layer L-1 of these rows, and what they need, over at most `limit` adjacency entries.

        For an answer, pass the node and its neighbours, or the neighbours of a new node. A row with more entries than the
        limit is computed alone.

        Returns:
            True if none of these states is stale any more.
        """
        return self._refresh(len(self._layers) - 1, rows, limit)

    def warm_up(self, limit: int) -> int:
        """Computes stale states over about `limit` adjacency entries. Returns the number of entries that were read."""
        total = 0
        for layer in self._layers:  # in order: a state needs states of the layer before
            stale = layer.stale_rows(limit - total)
            for start in range(0, len(stale), CHUNK_ROWS):
                layer.refresh(stale[start : start + CHUNK_ROWS])
            total += int(self.adjacency.degrees(stale).sum()) + len(stale)
        return total

    def check_neighbors(self, new: NewNodes) -> None:
        """Raises NewNodeError if a neighbour of a new node was removed from the graph."""
        removed = self.adjacency.is_removed(np.minimum(new.neighbors, self.adjacency.num_nodes - 1))
        if removed.any():
            item = int(np.repeat(np.arange(len(new)), new.counts)[removed][0])
            raise NewNodeError(f"neighbour {new.neighbors[removed][0]} was removed from the graph", item)

    def what_if(self, changes: Changes) -> ChangingGraph:
        """The graph after these changes, without changing this one. It may be read until this graph changes."""
        graph = ChangingGraph(self.model, self.states, self.sums, self.adjacency)
        graph.version = self.version
        graph.apply(changes)
        return graph

    def apply(self, changes: Changes) -> Applied:
        """Makes the changes.

        Raises:
            ChangeError: the graph has changed since the draft was made.
        """
        if changes.version != self.version:
            raise ChangeError(f"the changes are for version {changes.version} of the graph, which is now {self.version}")
        added, removed = DirectedEdges.of(changes.added_edges), DirectedEdges.of(self._removed_edges(changes))
        new_rows = np.arange(self.adjacency.num_nodes, self.adjacency.num_nodes + changes.num_added)
        rows = np.unique(np.concatenate([new_rows, changes.removed, changes.rows, added.sources, removed.sources]))
        live = np.ones(len(rows), dtype=bool)
        live[np.searchsorted(rows, changes.removed)] = False
        before = self._sent(rows, rows < self.adjacency.num_nodes)
        self.adjacency.change(changes.num_added, changes.removed, added, removed)
        self._inputs.put(changes.rows, *([changes.inputs, changes.initial][: self._inputs.num_columns]))
        self._replace_sums(changes.sums)
        self.version += 1
        messages = lambda: MessageChanges(rows, before, self._sent(rows, live), added, removed)  # noqa: E731
        return Applied(len(rows), *self._spread(rows[live], messages))

    def compacted(self) -> tuple[Indices, Graph]:
        """The rows that are not removed, in order, and the graph of these nodes, for the full-graph forward. Costs O(N + E).

        The features of the graph are `MappedRows`: they read Z0 and the GCN's input from this graph, until it changes.
        """
        rows, total = self.adjacency.live_rows(), self.adjacency.num_nodes
        numbers = np.zeros(total, dtype=np.int32 if total <= np.iinfo(np.int32).max else np.int64)
        numbers[rows] = np.arange(len(rows))
        indptr = np.append(0, np.cumsum(self.adjacency.degrees(rows)))
        indices: Any = numbers[self.adjacency.neighbors(rows)]
        features: Any = MappedRows(self.states.inputs, self.states.layers[0], rows, self.model.config.in_features)
        return rows, Graph(features, Adjacency(indptr, indices))

    def _removed_edges(self, changes: Changes) -> Indices:
        """All removed edges, the edges of removed rows included."""
        rows = changes.removed[changes.removed < self.adjacency.num_nodes]
        if not len(rows):
            return changes.removed_edges
        ends = np.stack([np.repeat(rows, self.adjacency.degrees(rows)), self.adjacency.neighbors(rows)])
        return np.concatenate([changes.removed_edges, ends], axis=1)

    def _read_inputs(self, rows: Indices) -> Array:
        return self._inputs.read(rows, INPUTS, lambda others: self.model.rows(self._base.inputs, others))

    def _read_initial(self, rows: Indices) -> Array:
        return self._inputs.read(rows, INITIAL, lambda others: self.model.rows(self._base.layers[0], others))

    def _refresh(self, number: int, rows: Indices, limit: int) -> bool:
        if number < 0 or not len(rows):
            return True
        layer = self._layers[number]
        stale = layer.stale(rows)
        if not len(stale):
            return True
        count = max(1, int(np.searchsorted(np.cumsum(self.adjacency.degrees(stale) + 1), limit, side="right")))
        first = stale[:count]
        if number and not self._refresh(number - 1, np.concatenate([first, self.adjacency.neighbors(first)]), limit):
            return False
        layer.refresh(first)
        return count == len(stale)

    def _sent(self, rows: Indices, existing: NDArray[np.bool_]) -> NDArray[np.float64]:
        """What these rows send into the first layer; zeros for rows that do not exist."""
        messages = np.zeros((len(rows), self.model.config.hidden))
        if self._layers:
            messages[existing] = sent(self.adjacency, self.states.layers[0], rows[existing])
        return messages

    def _replace_sums(self, sums: AttentionSums) -> None:
        """Subtraction loses digits if little remains. Then the sums are computed again, over all rows."""
        self._peaks = np.maximum(self._peaks, _magnitudes(sums))
        if (_magnitudes(sums) * MAX_CANCELLATION < self._peaks).any():
            config, rows = self.model.config, self.adjacency.live_rows()
            sums = AttentionSums.empty(config.normalization, config.heads, config.hidden)
            for start in range(0, len(rows), CHUNK_ROWS):
                sums = sums + sums_of(self.model, self.states.inputs.take(rows[start : start + CHUNK_ROWS]))
            self._peaks = _magnitudes(sums)
        self.sums, self._attention = sums, None

    def _spread(self, changed: Indices, messages: Callable[[], MessageChanges]) -> tuple[int, int]:
        """Marks the states that changed rows reach as stale, in every layer; updates the totals of the first layer.

        Only states that were valid before are followed into the next layer, because of the invariant of `LayerStates`.
        """
        num_states = num_entries = 0
        for number, layer in enumerate(self._layers, start=1):
            lists = self.adjacency.neighbors(changed)
            num_entries += len(lists)
            if number == 1:
                changed = layer.receive(changed, lists, messages)
            else:
                changed = layer.mark_stale(self.adjacency.distinct(np.concatenate([changed, lists])))
            num_states += len(changed)
        return num_states, num_entries


def _magnitudes(sums: AttentionSums) -> NDArray[np.float64]:
    return np.array([sums.query_square, sums.key_square, sums.count], dtype=np.float64)
