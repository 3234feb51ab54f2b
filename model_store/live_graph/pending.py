"""Operations by node id that are validated but not yet applied, and their net effect on the graph."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

from model_store.errors import OperationError
from model_store.live_graph.operations import Features, Label, NodeId, Operation
from model_store.live_graph.prepared_features import Prepared, invalid_values
from sgformer.features import FeatureRows
from sgformer.live.changes import Changes, Draft
from sgformer.live.undo import UndoDict

MIN_NODES = 2
"""The smallest graph that `sgformer.Graph` accepts: the attention of a single node may divide by zero."""


class GraphNodes(Protocol):
    """What the validation reads from the graph besides its edges."""

    @property
    def num_nodes(self) -> int: ...

    def row(self, node: NodeId) -> int | None:
        """The row of a node, or None if the graph does not have it."""

    def check_new_id(self, node: NodeId) -> None:
        """Raises ValueError if a new node cannot have this id."""

    def check_label(self, label: Label) -> None:
        """Raises ValueError if the label does not fit the task of the model."""


class PendingChanges:
    """The operations of one request after another; each request sees the effect of those before it."""

    def __init__(self, nodes: GraphNodes, draft: Draft) -> None:
        self._nodes, self._draft = nodes, draft
        journal = draft.journal
        self.rows: UndoDict[NodeId, int | None] = UndoDict(journal)
        """By id: the row of a node that an operation has added; None for a node that an operation has removed."""
        self.ids: UndoDict[int, NodeId] = UndoDict(journal)
        """The ids of new rows."""
        self.removed: UndoDict[int, None] = UndoDict(journal)
        self.features: UndoDict[int, Features] = UndoDict(journal)
        """By row, as the operations give them."""
        self.labels: UndoDict[int, Label] = UndoDict(journal)

    @cached_property
    def changes(self) -> Changes:
        """The net effect, to be read after the last `add`. Computed once: it costs as much as the validation."""
        return self._draft.changes()

    @property
    def num_nodes(self) -> int:
        """The number of nodes after the operations so far."""
        return self._nodes.num_nodes + len(self.ids) - len(self.removed)

    def add(
        self, operations: Sequence[Operation], features: Sequence[Prepared], upsert: bool = False
    ) -> tuple[list[Operation], int]:
        """Validates operations in their order and adds the effect of all of them, or of none.

        With `upsert`, adding what exists becomes an update, and removing what does not exist has no effect.

        Args:
            features: as `prepare_features` returns them for these operations.

        Returns:
            The operations in a form that is valid without `upsert`, and the number of operations that `upsert` changed.

        Raises:
            OperationError: names the first invalid operation.
        """
        strict: list[Operation] = []
        changed, savepoint = 0, self._draft.savepoint()
        for index, (operation, prepared) in enumerate(zip(operations, features, strict=True)):
            try:
                steps = self._resolve(operation) if upsert else [operation]
                for step in steps:
                    getattr(self, f"_{step.op}")(step, prepared)
            except OperationError as error:
                self._draft.rollback(savepoint)
                raise OperationError(error.code, error.message, index, error.node) from None
            strict += steps
            changed += steps != [operation]
        return strict, changed

    def _resolve(self, operation: Operation) -> list[Operation]:
        """Returns the operations, valid without `upsert`, that have the effect of this one with `upsert`."""
        op, node = operation.op, operation.id
        if op == "add_node" and (row := self._find(node)) is not None:
            steps = [Operation("set_features", node, operation.features)]
            if operation.label is not None:
                steps.append(Operation("set_label", node, label=operation.label))
            neighbors = dict.fromkeys(operation.neighbors)
            missing = [other for other in neighbors if not self._draft.has_edge(row, self._row(other))]
            return [*steps, *(Operation("add_edge", source=node, target=other) for other in missing)]
        if op == "remove_node" and self._find(node) is None:
            return []
        if op in ("add_edge", "remove_edge") and operation.source != operation.target:
            left, right = self._find(operation.source), self._find(operation.target)
            if left is None or right is None:
                return [operation] if op == "add_edge" else []  # `_add_edge` then raises: an end is missing
            return [operation] if self._draft.has_edge(left, right) == (op == "remove_edge") else []
        return [operation]

    def _add_node(self, operation: Operation, features: Prepared) -> None:
        node = operation.id
        if self._find(node) is not None:
            raise OperationError("conflict", f"node {node!r} exists already; use set_features, or upsert", node=node)
        with invalid_values(node):
            self._nodes.check_new_id(node)
            self._nodes.check_label(operation.label)
        features = _valid(features)
        neighbors = [self._row(neighbor) for neighbor in dict.fromkeys(operation.neighbors)]
        row = self._draft.add_node(features, neighbors)
        self.rows[node], self.ids[row], self.features[row] = row, node, operation.features
        if operation.label is not None:
            self.labels[row] = operation.label

    def _set_features(self, operation: Operation, features: Prepared) -> None:
        row = self._row(operation.id)
        self._draft.set_features(row, _valid(features))
        self.features[row] = operation.features

    def _set_label(self, operation: Operation, _features: Prepared) -> None:
        row = self._row(operation.id)
        with invalid_values(operation.id):
            self._nodes.check_label(operation.label)
        self.labels[row] = operation.label

    def _remove_node(self, operation: Operation, _features: Prepared) -> None:
        node, row = operation.id, self._row(operation.id)
        if self.num_nodes <= MIN_NODES:
            message = f"node {node!r} cannot be removed: a graph needs at least {MIN_NODES} nodes"
            raise OperationError("conflict", message, node=node)
        self._draft.remove_node(row)
        self.rows[node] = None
        self.removed[row] = None
        self.features.discard(row)
        self.labels.discard(row)

    def _add_edge(self, operation: Operation, _features: Prepared) -> None:
        if not self._draft.add_edge(*self._ends(operation)):
            message = f"edge {operation.source!r} - {operation.target!r} exists already"
            raise OperationError("conflict", message, node=operation.source)

    def _remove_edge(self, operation: Operation, _features: Prepared) -> None:
        if not self._draft.remove_edge(*self._ends(operation)):
            message = f"there is no edge {operation.source!r} - {operation.target!r}"
            raise OperationError("conflict", message, node=operation.source)

    def _ends(self, operation: Operation) -> tuple[int, int]:
        left, right = self._row(operation.source), self._row(operation.target)
        if left == right:
            message = f"an edge from {operation.source!r} to itself, expected two different nodes"
            raise OperationError("invalid", message, node=operation.source)
        return left, right

    def _find(self, node: NodeId) -> int | None:
        return self.rows[node] if node in self.rows else self._nodes.row(node)

    def _row(self, node: NodeId) -> int:
        row = self._find(node)
        if row is None:
            raise OperationError("unknown_node", f"node {node!r} is not in the graph", node=node)
        return row


def _valid(features: Prepared) -> FeatureRows:
    if isinstance(features, OperationError):
        raise features
    assert features is not None, "the operation has features"  # noqa: S101
    return features
