"""A graph with labels and a split: what training needs of a data set."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store import NodeIds
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
    """TRAIN, VALIDATION, TEST or UNUSED per node. Unlabelled nodes are UNUSED: they take part, and are never scored."""
    task: Task = "multiclass"
    metric: str = "accuracy"
    """By which the best epoch is chosen: one of `tasks.METRICS`."""
    class_names: tuple[str, ...] | None = None
    node_ids: NodeIds | None = None
    feature_names: tuple[str, ...] | None = None
    drawn: str | None = None
    """The rule by which each node drew its own part of the split (`splits.steady_split`); None for any other split."""

    def __post_init__(self) -> None:
        labels = self.labels
        unlabelled = labels < 0 if self.task == "multiclass" else np.isnan(labels.reshape(len(labels), -1)).all(axis=1)
        object.__setattr__(self, "split", np.where(unlabelled, UNUSED, self.split).astype(np.int8))

    def nodes(self, part: int) -> NDArray[np.int64]:
        return np.flatnonzero(self.split == part)

    @property
    def num_outputs(self) -> int:
        if self.task == "multiclass":
            return len(self.class_names) if self.class_names else int(self.labels.max()) + 1
        return 1 if self.labels.ndim == 1 else int(self.labels.shape[1])

    def sha256(self) -> str:
        """Of everything that training reads: the same data, however it was stored, has the same hash."""
        return sha256_of(self.graph, self.labels, self.split)


def sha256_of(graph: Graph, *arrays: NDArray[Any]) -> str:
    features = graph.features
    rows = (features.indptr, features.indices, features.values) if isinstance(features, SparseRows) else (features,)
    digest = hashlib.sha256()
    for array in (*rows, graph.adjacency.indptr, graph.adjacency.indices, *arrays):
        digest.update(f"{array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
