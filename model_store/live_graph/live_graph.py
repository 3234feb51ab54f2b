"""The graph of a snapshot after the changes of its log: nodes by id, with their current labels and features."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from copy import copy
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model_store.errors import OperationError
from model_store.format.manifest import Manifest
from model_store.format.node_ids import is_valid_text
from model_store.graph_log.record import Position, Record
from model_store.live_graph.operations import Change, Features, Label, NodeId, Operation
from model_store.live_graph.pending import PendingChanges
from model_store.live_graph.prepared_features import prepare_features
from model_store.snapshot import Snapshot
from sgformer import ChangingGraph, UnknownNodeError


class ChangeRequest(NamedTuple):
    """A change that a client asks for: all of its operations or none."""

    operations: Sequence[Operation]
    upsert: bool = False
    digest: str = ""
    """The sha256 of the request, for its idempotency key."""


class Plan(NamedTuple):
    """Requests that were validated in order, each against the state after the requests before it."""

    changes: list[Change | OperationError]
    """For each request, the change to log, or the error. A request with an error has no effect on the others."""
    pending: PendingChanges
    """The effect of all valid requests together."""


class LiveGraph:
    """The graph after the changes of its log so far. Equal positions in the log prove equal graphs.

    Not for several threads at once.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot, self.config = snapshot, snapshot.manifest.config
        self.id, self.base_sequence = graph_of(snapshot.manifest)
        self.graph = ChangingGraph(snapshot.model, snapshot.states, snapshot.sums, snapshot.adjacency)
        position = snapshot.manifest.live or {}
        self.position = Position(self.base_sequence, position.get("hash") or Position().hash)
        """The position of the last record that was applied, or that the snapshot contains."""
        self._rows: MutableMapping[NodeId, int] = {}
        """The rows of nodes that changes have added."""
        self._ids: MutableMapping[int, NodeId] = {}
        self._features: dict[int, Features] = {}
        self._labels: dict[int, Label] = {}
        self._times: dict[int, float] = {}

    @property
    def is_changed(self) -> bool:
        """True if the graph differs from that of the snapshot."""
        return self.graph.version > 0

    @property
    def num_nodes(self) -> int:
        return self.graph.num_nodes

    @property
    def num_edges(self) -> int:
        return self.graph.adjacency.num_edges

    @property
    def num_rows(self) -> int:
        """The number of rows, those of removed nodes included."""
        return self.graph.adjacency.num_nodes

    @property
    def num_features(self) -> int:
        return self.config.in_features

    def describe(self) -> dict[str, Any]:
        """The state of the graph, by the field names of GET /graph."""
        size = self.graph.size
        return {
            "graph": self.id,
            "sequence": self.position.sequence,
            "hash": None if self.position.hash == Position().hash else self.position.hash,
            "snapshot_sequence": self.base_sequence,
            "nodes": self.num_nodes,
            "edges": self.num_edges,
            "overlay": {"nodes": size.nodes, "features": size.features, "states": size.states, "bytes": size.num_bytes},
        }

    # Changes

    def plan(self, requests: Iterable[ChangeRequest]) -> Plan:
        """Validates requests without changing the graph."""
        requests = list(requests)
        draft = self.graph.draft()
        pending = PendingChanges(self, draft)
        all_operations = [operation for request in requests for operation in request.operations]
        features = iter(prepare_features(all_operations, self.num_features, draft.are_too_large))
        changes: list[Change | OperationError] = []
        for request in requests:
            try:
                own_features = list(islice(features, len(request.operations)))
                operations, skipped = pending.add(request.operations, own_features, request.upsert)
                changes.append(Change(operations, request.digest, skipped))
            except OperationError as error:
                changes.append(error)
        return Plan(changes, pending)

    def apply(self, pending: PendingChanges, records: Sequence[Record]) -> None:
        """Applies planned changes. `records` are their records in the log, and must follow the current position."""
        assert records[0].sequence == self.position.sequence + 1, "records are applied in order"  # noqa: S101
        self.graph.apply(pending.changes)
        for node, row in pending.rows.items():
            if row is None:
                self._rows.pop(node, None)
            else:
                self._rows[node], self._ids[row], self._times[row] = row, node, records[-1].time
        self._features |= pending.features
        self._labels |= pending.labels
        for row in pending.removed:
            for values in (self._ids, self._features, self._labels, self._times):
                values.pop(row, None)
        self.position = Position(records[-1].sequence, records[-1].hash)

    def follow(self, records: Sequence[Record]) -> None:
        """Applies records of the log, which must follow the current position."""
        if records:
            self.apply(self.read(records), records)

    def read(self, records: Sequence[Record]) -> PendingChanges:
        """The effect of records that follow the current position, for `apply`. Does not change the graph."""
        pending = PendingChanges(self, self.graph.draft())
        operations = [operation for record in records for operation in Change.from_payload(record.payload).operations]
        pending.add(operations, prepare_features(operations, self.num_features, None))
        return pending

    def what_if(self, operations: Sequence[Operation]) -> tuple[ChangingGraph, PendingChanges]:
        """Returns the graph after these operations, and the pending changes, which have the ids of new rows.

        Both are valid until this graph changes. Raises OperationError.
        """
        draft = self.graph.draft()
        pending = PendingChanges(self, draft)
        pending.add(operations, prepare_features(operations, self.num_features, draft.are_too_large))
        return self.graph.what_if(pending.changes), pending

    def assuming(self, operations: Sequence[Operation]) -> LiveGraph:
        """This graph after these operations, which are not kept. It may be read until this graph changes.

        Raises OperationError.
        """
        graph, pending = self.what_if(operations)
        assumed = copy(self)
        assumed.graph = graph
        # -1: `row` looks the node up in the snapshot, which either lacks it or has its row, which `graph` marks as removed.
        assumed._rows = ChainMap({node: -1 if row is None else row for node, row in pending.rows.items()}, self._rows)
        assumed._ids = ChainMap(pending.ids, self._ids)
        return assumed

    # Nodes

    def row(self, node: NodeId) -> int | None:
        """The row of a node, or None if the graph does not have it."""
        row: int | None = self._rows.get(node, -1)
        if row == -1:
            row = self.snapshot.row(node)
        return row if row is not None and self.graph.adjacency.has_row(row) else None

    def rows(self, nodes: Sequence[NodeId]) -> NDArray[np.int64]:
        """Raises UnknownNodeError, which names the first node that the graph does not have."""
        if len(nodes) == 1 and (row := self.row(nodes[0])) is not None:
            return np.array([row], dtype=np.int64)
        if not self._rows:
            rows = self.snapshot.rows(nodes)
        else:
            new = [self._rows.get(node, -1) for node in nodes]
            rows = np.array(new, dtype=np.int64)
            if stored := [node for node, row in zip(nodes, new, strict=True) if row < 0]:
                try:
                    rows[rows < 0] = self.snapshot.rows(stored)
                except UnknownNodeError as error:  # its text names the range of ids in the snapshot
                    raise UnknownNodeError(f"node {error.node!r} is not in the graph", error.node) from None
        removed = self.graph.adjacency.is_removed(rows)
        if removed.any():
            node = nodes[int(removed.argmax())]
            raise UnknownNodeError(f"node {node!r} is not in the graph: it was removed", node)
        return rows

    def ids(self, rows: Iterable[int]) -> list[NodeId]:
        """The inverse of `rows`."""
        return [self._ids[row] if row in self._ids else self.snapshot.ids([row])[0] for row in rows]

    def features(self, row: int) -> Features | None:
        """The features that a change gave the node, in the form of the operation; None if the snapshot has its features."""
        return self._features.get(row)

    def label(self, row: int) -> Label:
        """The label of a node: its class, its value, or one number per label; None if it has no label."""
        if row in self._labels or self.snapshot.labels is None or row >= len(self.snapshot.labels):
            return self._labels.get(row)
        return _plain(self.snapshot.labels[row])

    def time(self, row: int) -> float | None:
        """When a change added the node, in seconds since 1970; None for a node of the snapshot."""
        return self._times.get(row)

    def changed_labels(self) -> Iterator[tuple[int, Label]]:
        yield from self._labels.items()

    def changed_features(self) -> Iterator[tuple[int, Features]]:
        yield from self._features.items()

    def check_new_id(self, node: NodeId) -> None:
        """Raises ValueError if a new node cannot have this id."""
        if self.snapshot.has_text_ids:
            if not isinstance(node, str) or not is_valid_text(node):
                raise ValueError("the ids of this graph are strings of 1 to 256 bytes without NUL")
        elif not isinstance(node, int):
            raise ValueError("the ids of this graph are whole numbers")

    def check_label(self, label: Label) -> None:
        """Raises ValueError if the task has no such label."""
        task, outputs = self.config.task, self.config.out_features
        if label is None:
            return
        if task == "multiclass":
            if type(label) is not int or not 0 <= label < outputs:
                raise ValueError(f"label {label!r}, expected a class from 0 to {outputs - 1}")
            return
        values = label if isinstance(label, list) else [label]
        if len(values) != outputs:
            raise ValueError(f"{len(values)} label(s), expected {outputs}")
        for value in values:
            if value is not None and not (math.isfinite(value) if task == "regression" else value in (0, 1)):
                raise ValueError(f"label {value!r}, expected {'a finite number' if task == 'regression' else '0 or 1'}")


def graph_of(manifest: Manifest) -> tuple[str, int]:
    """The id of the graph of a snapshot, and the sequence of the last change that the snapshot contains.

    A graph is named by the hash of the data that it started from, so versions that were trained on the same data share it.
    """
    if manifest.live is not None:
        return str(manifest.live["graph"]), int(manifest.live["sequence"])
    return str(manifest.dataset.get("sha256", manifest.snapshot)), 0


def _plain(label: NDArray[np.generic]) -> Label:
    """A stored label as JSON: an unknown label (-1 for a class, else NaN) is None."""
    is_class = label.dtype.kind == "i"
    values = [None if (value == -1 if is_class else value != value) else value for value in np.atleast_1d(label).tolist()]
    return values if np.ndim(label) else values[0]
