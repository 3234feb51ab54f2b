"""A batch of changes: operations in order, validated one by one, and their net effect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sgformer.arrays.operations import Array, Indices
from sgformer.errors import ChangeError, UnknownNodeError
from sgformer.features import FeatureRows, stack_any
from sgformer.live.undo import Journal, UndoDict
from sgformer.request_time.inference import InferenceModel
from sgformer.sums import AttentionSums

if TYPE_CHECKING:
    from sgformer.live.changing_graph import ChangingGraph


@dataclass(frozen=True)
class Changes:
    """The net effect of a batch on one version of a graph, made and checked by `Draft.changes`."""

    version: int
    num_added: int
    """New rows, including those that the batch removes again."""
    removed: Indices
    rows: Indices
    """Rows with new features, new rows included; rows that the batch removes are not."""
    inputs: Array
    """Z0 of `rows`."""
    initial: Array
    """The GCN's input of `rows`."""
    added_edges: Indices
    """(2, m) edges, each once. Edges of removed rows are not listed, neither here nor in `removed_edges`."""
    removed_edges: Indices
    sums: AttentionSums
    """The sums after the changes."""


class Draft:
    """Collects operations on a graph without changing it. Every operation sees the effect of those before it.

    A draft belongs to the version of the graph for which it was made. The rows that it adds follow the rows of the graph.
    """

    def __init__(self, graph: ChangingGraph) -> None:
        self._graph, self._adjacency, self._version = graph, graph.adjacency, graph.version
        self._first_new = self._next = graph.adjacency.num_nodes
        self.journal = Journal()
        self._features: UndoDict[int, FeatureRows] = UndoDict(self.journal)
        self._removed: UndoDict[int, None] = UndoDict(self.journal)
        self._edges: UndoDict[tuple[int, int], bool] = UndoDict(self.journal)
        """Edges that differ from the graph: True if the edge is added, False if it is removed."""

    def add_node(self, features: FeatureRows, neighbors: Sequence[int] = ()) -> int:
        """Adds a node with edges to these distinct rows, and returns its row.

        `features` is one row that `checked_features` has validated. Raises UnknownNodeError if a neighbour does not exist.
        """
        for neighbor in neighbors:
            self._check_live(neighbor)
        row, self._next = self._next, self._next + 1
        self._features[row] = self._checked(features)
        for neighbor in neighbors:
            self._edges[neighbor, row] = True  # the new row is the larger one
        return row

    def set_features(self, row: int, features: FeatureRows) -> None:
        """Raises UnknownNodeError if there is no such node."""
        self._check_live(row)
        self._features[row] = self._checked(features)

    def remove_node(self, row: int) -> None:
        """Removes a node and its edges. Raises UnknownNodeError if there is no such node."""
        self._check_live(row)
        self._removed[row] = None
        self._features.discard(row)

    def has_node(self, row: int) -> bool:
        """Whether the row is in the graph after the operations so far."""
        if row in self._removed:
            return False
        return self._adjacency.has_row(row) if 0 <= row < self._first_new else 0 <= row < self._next

    def has_edge(self, left: int, right: int) -> bool:
        """Whether there is an edge after the operations so far. Raises UnknownNodeError if an end does not exist."""
        key = self._edge(left, right)
        changed = self._edges.get(key)
        return self._in_graph(*key) if changed is None else changed

    def add_edge(self, left: int, right: int) -> bool:
        """Returns False, and changes nothing, if the edge exists.

        Raises:
            UnknownNodeError: an end does not exist.
            ChangeError: an edge from a node to itself.
        """
        return self._set_edge(left, right, True)

    def remove_edge(self, left: int, right: int) -> bool:
        """Returns False, and changes nothing, if the edge does not exist. Raises what `add_edge` raises."""
        return self._set_edge(left, right, False)

    def savepoint(self) -> tuple[int, int]:
        """The operations so far, for `rollback`."""
        return len(self.journal.entries), self._next

    def rollback(self, savepoint: tuple[int, int]) -> None:
        """Undoes the operations after a savepoint."""
        length, self._next = savepoint
        self.journal.undo(length)

    def are_too_large(self, features: Sequence[FeatureRows]) -> NDArray[np.bool_]:
        """For each of these rows, whether it lies so far from the features of the graph that it would dominate all sums."""
        sizes = np.max([np.abs(part).max(axis=1) for part in self._inputs(features)], axis=0)
        too_large: NDArray[np.bool_] = ~(sizes <= self._graph.max_input)  # also if a size is not a number
        return too_large

    def changes(self) -> Changes:
        """The net effect of all operations.

        Raises:
            ChangeError: features are so large that the model has no finite value for them; `row` is the row at fault.
        """
        model = self._graph.model
        rows = np.array(list(self._features), dtype=np.int64)
        inputs = initial = np.empty((0, model.config.hidden), dtype=model.dtype)
        if len(rows):
            inputs, initial = self._inputs(list(self._features.values()))
        removed = np.array(sorted(self._removed), dtype=np.int64)
        old = rows[rows < self._first_new]
        return Changes(
            self._version,
            self._next - self._first_new,
            removed,
            rows,
            inputs,
            initial,
            self._net_edges(added=True),
            self._net_edges(added=False),
            self._sums(np.concatenate([old, removed[removed < self._first_new]]), rows, inputs, initial),
        )

    def _inputs(self, features: Sequence[FeatureRows]) -> tuple[Array, Array]:
        """Z0 and the GCN's input of rows with new features. They may be infinite."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self._graph.model.inputs(stack_any(list(features)))

    def _sums(self, old_rows: Indices, rows: Indices, inputs: Array, initial: Array) -> AttentionSums:
        """The sums without the old values of rows that change or are removed, and with the new values."""
        model, sums = self._graph.model, self._graph.sums
        if len(old_rows):
            sums = sums - sums_of(model, self._graph.states.inputs.take(old_rows))
        if not len(rows):
            return sums
        with np.errstate(over="ignore", invalid="ignore"):
            sums = sums + sums_of(model, inputs)
            sizes = sums.key_value.sum() + sums.query_square + sums.key_square + inputs.sum() + initial.sum()
            if not np.isfinite(sizes):
                row = int(rows[self._infinite(inputs, initial)][0])
                raise ChangeError(f"the features of row {row} are too large for the model", row)
        return sums

    def _infinite(self, inputs: Array, initial: Array) -> NDArray[np.bool_]:
        """For each row, whether the model has no finite value for it."""
        finite = np.isfinite(inputs).all(axis=1) & np.isfinite(initial).all(axis=1)
        for part in self._graph.model.project(inputs, "query", "key", "value"):
            finite &= np.isfinite(np.square(part.astype(np.float64)).sum(axis=(1, 2)))
        infinite: NDArray[np.bool_] = ~finite
        return infinite

    def _net_edges(self, added: bool) -> Indices:
        keys = [key for key, is_added in self._edges.items() if is_added is added]
        edges = [(left, right) for left, right in keys if left not in self._removed and right not in self._removed]
        return np.array(edges, dtype=np.int64).reshape(-1, 2).T

    def _set_edge(self, left: int, right: int, wanted: bool) -> bool:
        key = self._edge(left, right)
        if key in self._edges:
            if self._edges[key] is wanted:
                return False
            self._edges.discard(key)
            return True
        if self._in_graph(*key) is wanted:
            return False
        self._edges[key] = wanted
        return True

    def _edge(self, left: int, right: int) -> tuple[int, int]:
        self._check_live(left)
        self._check_live(right)
        if left == right:
            raise ChangeError(f"an edge from row {left} to itself, expected an edge between two nodes", left)
        return (left, right) if left < right else (right, left)

    def _in_graph(self, left: int, right: int) -> bool:
        return right < self._first_new and self._adjacency.has_edge(left, right)

    def _check_live(self, row: int) -> None:
        if not self.has_node(row):
            raise UnknownNodeError(f"node {row} is not in the graph", row)

    def _checked(self, features: FeatureRows) -> FeatureRows:
        expected = (1, self._graph.model.config.in_features)
        if tuple(features.shape) != expected:
            raise ChangeError(f"features have shape {tuple(features.shape)}, expected {expected}")
        return features


def sums_of(model: InferenceModel, inputs: Array) -> AttentionSums:
    """The sums over these Z0 rows, in float64: subtracting a row later leaves nothing of it but float64 rounding."""
    parts = (part.astype(np.float64) for part in model.project(inputs, "query", "key", "value"))
    return AttentionSums.of_rows(model.config.normalization, *parts)
