"""The live graph as histograms, and the distance of its attention sums from the sums of the training graph.

Runs in the monitoring process: only one thread may read a live graph, and in a worker that is the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model_store.live_graph.operations import feature_rows
from service.engines.served_model import ServedModel
from service.monitoring.reference import Reference, dense_columns, sample
from sgformer import AttentionSums
from sgformer.arrays.operations import Indices
from sgformer.features import FeatureRows
from sgformer.histograms import Counts

MIN_CHANGE = 0.1
"""The smallest relative change of the sums that counts as drift."""
DEVIATIONS = 4
"""The threshold is this many standard deviations of the change that random nodes, as many as changed, would cause."""


@dataclass(frozen=True, eq=False)
class GraphCounts:
    sequence: int
    """The number of the last change of the graph that the counts contain."""
    counts: Counts
    """The counts of a sample of the nodes, as `Reference.count` returns them."""
    num_nodes: int
    sums_change: float
    sums_threshold: float


@dataclass(frozen=True, eq=False)
class CountRequest:
    """Asks the monitoring process to count the graph as it is now (`ComputeProcess` calls `compute`)."""

    @staticmethod
    def compute(model: ServedModel, batch: Sequence[CountRequest]) -> list[GraphCounts]:
        return [count_graph(model)] * len(batch)


def count_graph(model: ServedModel) -> GraphCounts:
    reference, graph = model.derive(_reference), model.live.graph
    rows = sample(graph.adjacency.live_rows())
    features = None if "features" in reference.reasons else _features(model, reference.columns, rows)
    counts = reference.count(features, graph.adjacency.degrees(rows), model.known(rows, embeddings=False).logits)
    stored = model.snapshot.states.num_nodes
    changed = {row for row, _ in model.live.changed_features()} | set(range(stored, model.num_rows))
    num_changed = len(changed) + graph.adjacency.num_removed
    threshold = float(max(MIN_CHANGE, DEVIATIONS * model.derive(_spread) * np.sqrt(2 * num_changed) / stored))
    return GraphCounts(model.sequence, counts, model.num_nodes, change_of_sums(graph.sums, model.snapshot.sums), threshold)


def change_of_sums(sums: AttentionSums, reference: AttentionSums) -> float:
    """The largest relative change of a node's mean contribution to the sums. More nodes of the same kind cause none."""
    changes = []
    for name in ("key_value", "key", "query_square", "key_square"):
        before, after = (np.asarray(getattr(part, name)) / max(part.count, 1) for part in (reference, sums))
        size = float(np.linalg.norm(before))
        changes.append(float(np.linalg.norm(after - before)) / size if size > 0 else 0.0)
    return max(changes)


def _reference(model: ServedModel) -> Reference:
    return Reference(model.snapshot)


def _spread(model: ServedModel) -> float:
    """The largest relative standard deviation of the contribution of a node to the sums of the training graph."""
    rows = sample(np.arange(model.snapshot.states.num_nodes))
    inputs = model.snapshot.model.rows(model.snapshot.states.inputs, rows)
    query, key, value = (part.astype(np.float64) for part in model.snapshot.model.project(inputs, "query", "key", "value"))
    sums = AttentionSums.of_rows(model.config.normalization, query, key, value)
    query_squares, key_squares, value_squares = ((part**2).sum(axis=2) for part in (query, key, value))
    squares = {
        "key_value": (key_squares * value_squares).sum(axis=1),  # |k^T v|^2 = |k|^2 |v|^2
        "key": key_squares.sum(axis=1),
        "query_square": query_squares.sum(axis=1) ** 2,
        "key_square": key_squares.sum(axis=1) ** 2,
    }
    return max(_deviation(part, np.asarray(getattr(sums, name)) / len(rows)) for name, part in squares.items())


def _deviation(squares: NDArray[np.float64], mean: NDArray[np.float64]) -> float:
    """The relative deviation of vectors x, from their |x|^2 and their mean: the root of (mean of |x|^2 - |mean|^2) /
    |mean|^2.
    """
    size = float(np.linalg.norm(mean))
    return float(np.sqrt(max(squares.mean() / size**2 - 1, 0.0))) if size > 0 else 0.0


def _features(model: ServedModel, columns: Indices, rows: Indices) -> NDArray[np.float64]:
    """Some columns of the features of rows as they are now."""
    stored, width = rows < model.snapshot.states.num_nodes, model.config.in_features
    values = np.zeros((len(rows), len(columns)))
    base: FeatureRows | None = model.snapshot.raw_features(rows[stored])
    if base is not None:
        values[stored] = dense_columns(base, columns)
    for row, features in model.live.changed_features():
        position = int(np.searchsorted(rows, row))
        if position < len(rows) and rows[position] == row:
            values[position] = dense_columns(feature_rows(features, width), columns)[0]
    return values
