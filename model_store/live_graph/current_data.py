"""The data of a graph after its changes: for a retraining, a compaction or a file. Costs O(N + E)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.errors import DataError
from model_store.format.manifest import Manifest
from model_store.format.node_ids import NodeIds
from model_store.graph_log.address import LogAddress
from model_store.graph_log.log import BATCH, GraphLog
from model_store.live_graph.live_graph import LiveGraph
from model_store.live_graph.operations import Label, feature_rows
from model_store.snapshot import Snapshot
from sgformer import Graph, SparseRows
from sgformer.arrays.operations import Indices
from sgformer.features import FeatureRows, stack_rows

NO_PART = -1


@dataclass(frozen=True)
class CurrentData:
    """The remaining nodes of the snapshot in their order, then the new nodes in the order in which they were added."""

    manifest: Manifest
    """The manifest of the snapshot."""
    position: dict[str, Any]
    """`Manifest.live` of a version over this data: the id of the graph, and its position in the log."""
    graph: Graph
    node_ids: NodeIds | None
    labels: NDArray[Any] | None
    """In the form of `Snapshot.labels`. None if no node has a label."""
    split: NDArray[np.int8]
    """The part of each node in the snapshot; -1 for new nodes, and for nodes that had no part."""
    newly_labelled: NDArray[np.bool_]
    """Nodes that have a label now, and had none in the snapshot."""


@contextmanager
def open_live_graph(
    snapshot: Snapshot, redis: dict[str, Any] | None = None, last: int | None = None
) -> Iterator[tuple[LiveGraph, GraphLog]]:
    """Yields the graph of a snapshot with all changes of its log, or those up to the sequence `last`; and the log."""
    live = LiveGraph(snapshot)
    with closing(LogAddress(snapshot.folder.parent, live.id, redis).open()) as log:
        while records := log.read(live.position.sequence, BATCH):
            live.follow([record for record in records if last is None or record.sequence <= last])
            if last is not None and records[-1].sequence >= last:
                break
        yield live, log


def current_data(live: LiveGraph) -> CurrentData:
    """Raises DataError if the snapshot has no raw features."""
    snapshot = live.snapshot
    stored = snapshot.raw_features()
    if stored is None:
        raise DataError(
            f"version {snapshot.folder.name} has no raw features (it was published with --no-raw-data, imported, or by an "
            "earlier release): its graph can be served and changed, but not trained on, compacted or exported"
        )
    rows, graph = live.graph.compacted()
    before, after = (_labels(live, rows, changed) for changed in (False, True))
    is_labelled = _is_labelled(after)
    split = np.full(len(rows), NO_PART, dtype=np.int8)
    if snapshot.split is not None:
        kept = rows < len(snapshot.split)
        split[kept] = snapshot.split[rows[kept]]
    return CurrentData(
        snapshot.manifest,
        {"graph": live.id, "sequence": live.position.sequence, "hash": live.position.hash},
        Graph(_features(live, stored, rows), graph.adjacency),
        _node_ids(live, rows),
        after if is_labelled.any() else None,
        split,
        is_labelled & ~_is_labelled(before),
    )


def _features(live: LiveGraph, stored: FeatureRows, rows: Indices) -> FeatureRows:
    num_stored, width = stored.shape
    changed = dict(live.changed_features())
    new_rows = [feature_rows(features, width) for features in changed.values()]
    positions = np.searchsorted(rows, list(changed))
    if isinstance(stored, SparseRows):
        sources = np.minimum(rows, num_stored - 1)
        sources[positions] = num_stored + np.arange(len(positions))
        return stack_rows([stored, *map(_sparse, new_rows)]).take(sources)
    features = np.empty((len(rows), width), dtype=stored.dtype)
    kept = rows < num_stored
    features[: kept.sum()] = stored[rows[kept]]  # new rows have larger numbers
    for position, row in zip(positions, new_rows, strict=True):
        features[position] = row.toarray()[0] if isinstance(row, SparseRows) else row[0]
    return features


def _sparse(rows: FeatureRows) -> SparseRows:
    if not isinstance(rows, SparseRows):
        columns = np.flatnonzero(rows[0])
        rows = SparseRows(np.array([0, len(columns)]), columns, rows[0, columns], rows.shape[1])
    return rows.astype(np.float32)


def _labels(live: LiveGraph, rows: Indices, changed: bool) -> NDArray[Any]:
    """The labels of these rows: after the changes if `changed`, else as in the snapshot."""
    config, stored = live.config, live.snapshot.labels
    unlabelled, dtype = (-1, np.int64) if config.task == "multiclass" else (np.nan, np.float32)
    single = config.task == "multiclass" or (config.task == "regression" and config.out_features == 1)
    labels: NDArray[Any] = np.full((len(rows), *(() if single else (config.out_features,))), unlabelled, dtype=dtype)
    if stored is not None:
        kept = rows < len(stored)
        labels[kept] = stored[rows[kept]]
    for row, label in live.changed_labels() if changed else ():
        labels[np.searchsorted(rows, row)] = _numbers(label, unlabelled)
    return labels


def _is_labelled(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """True for every node with at least one label."""
    return labels >= 0 if labels.dtype.kind == "i" else ~np.isnan(labels.reshape(len(labels), -1)).all(axis=1)


def _numbers(label: Label, unlabelled: float) -> Any:
    if isinstance(label, list):
        return [unlabelled if value is None else value for value in label]
    return unlabelled if label is None else label


def _node_ids(live: LiveGraph, rows: Indices) -> NodeIds | None:
    """None if the ids are the row numbers, before and after the changes."""
    stored, num_stored = live.snapshot.node_ids, live.snapshot.states.num_nodes
    kept, new = rows[rows < num_stored], live.ids(rows[rows >= num_stored].tolist())
    if stored is not None and stored.are_text:
        return NodeIds.build(stored.names(kept.tolist()) + new)
    ids = np.concatenate([kept if stored is None else stored.arrays[0][kept], np.array(new, dtype=np.int64)])
    return None if stored is None and np.array_equal(ids, np.arange(len(ids))) else NodeIds.build(ids)
