"""A graph with labels and a split: the input of training."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store import DataError, FeatureSchema, NodeIds
from sgformer import Graph, SparseRows
from sgformer.config import Task

TRAIN, VALIDATION, TEST, UNUSED = 0, 1, 2, -1
PARTS = {"train": TRAIN, "validation": VALIDATION, "test": TEST}


@dataclass(frozen=True)
class LabelledGraph:
    name: str
    graph: Graph
    labels: NDArray[Any]
    """Multi-class: (N,) classes, -1 unlabelled. Multi-label: (N, T) 0/1, NaN unlabelled. Regression: (N,) or (N, T), NaN."""
    split: NDArray[np.int8]
    """TRAIN, VALIDATION, TEST or UNUSED per node. Unlabelled nodes are UNUSED: part of the graph, but never scored."""
    task: Task = "multiclass"
    metric: str = "accuracy"
    """Chooses the best epoch: one of `tasks.METRICS`."""
    class_names: tuple[str, ...] | None = None
    node_ids: NodeIds | None = None
    feature_names: tuple[str, ...] | None = None
    drawn: str | None = None
    """The rule of a split that depends on ids (`splits.steady_split`), as text; None for any other split."""
    schema: FeatureSchema | None = None
    """Of features with names."""
    reading: Mapping[str, Any] | None = None
    """How tables were read: JSON for the manifest (`tables.reading`). None if the data is not tables."""
    live: Mapping[str, Any] | None = None
    """The graph and its last change, if this is a live graph (`Manifest.live`)."""
    classes: int | None = None
    """The number of classes of an earlier version, some of which the labels may not have."""
    missing_cells: Mapping[str, int] | None = None
    """The number of cells that were filled in, of the columns of tables that have any; None if the data is not tables."""
    notes: tuple[str, ...] = ()
    """Sentences for the user about what was left out, filled in or assumed."""

    def __post_init__(self) -> None:
        split = np.where(is_labelled(self.labels, self.task), self.split, UNUSED).astype(np.int8)
        object.__setattr__(self, "split", split)

    def check_parts(self, source: str) -> None:
        """Raises DataError if there is nothing to train on, or nothing to choose the best epoch by."""
        for name, part in (("training", TRAIN), ("validation", VALIDATION)):
            if not len(self.nodes(part)):
                raise DataError(f"{source}: the split has no labelled {name} nodes")

    def nodes(self, part: int) -> NDArray[np.int64]:
        return np.flatnonzero(self.split == part)

    @property
    def num_outputs(self) -> int:
        if self.task == "multiclass":
            return len(self.class_names) if self.class_names else self.classes or int(self.labels.max()) + 1
        return 1 if self.labels.ndim == 1 else int(self.labels.shape[1])

    def sha256(self) -> str:
        """The hash of graph, labels and split, whatever file they came from."""
        return self._sha256

    @cached_property
    def _sha256(self) -> str:
        return sha256_of(self.graph, self.labels, self.split)

    def description(self) -> dict[str, Any]:
        return describe_data(self.name, self.sha256(), self.feature_names)


def is_labelled(labels: NDArray[Any], task: Task) -> NDArray[np.bool_]:
    """True for every node with at least one label."""
    return labels >= 0 if task == "multiclass" else ~np.isnan(labels.reshape(len(labels), -1)).all(axis=1)


def describe_data(name: str, sha256: str, feature_names: tuple[str, ...] | None) -> dict[str, Any]:
    """What the manifest and the `data` event say about the data."""
    return {"name": name, "sha256": sha256} | ({"features": list(feature_names)} if feature_names else {})


def sha256_of(graph: Graph, *arrays: NDArray[Any]) -> str:
    features = graph.features
    rows = (features.indptr, features.indices, features.values) if isinstance(features, SparseRows) else (features,)
    digest = hashlib.sha256()
    for array in (*rows, graph.adjacency.indptr, graph.adjacency.indices, *arrays):
        digest.update(f"{array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
