"""The facts about one graph with its labels: what `sgf-train check` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store import FeatureSchema
from sgformer import Graph, SparseRows
from sgformer.config import FeatureTransform, Task
from sgformer.features import BLOCK_ROWS
from training.data.facts.columns import ColumnFacts, ColumnKind, by_schema, column_facts, with_missing
from training.data.facts.structure import Homophily, StructureFacts
from training.data.labelled import PARTS, LabelledGraph, is_labelled

MAX_COLUMNS_LISTED = 40


@dataclass(frozen=True)
class FeatureFacts:
    columns: tuple[ColumnFacts, ...]
    named: bool
    sparse: bool
    non_zero: float
    """The share of values that are not zero."""
    empty_rows: int
    """Nodes whose features are all zero."""

    @classmethod
    def of(
        cls,
        data: Graph,
        names: tuple[str, ...] | None,
        schema: FeatureSchema | None,
        labels: Any = None,
        missing_cells: Mapping[str, int] | None = None,
    ) -> FeatureFacts:
        """`missing_cells`: as in `LabelledGraph`."""
        rows, sparse = data.features, isinstance(data.features, SparseRows)
        entries = np.diff(rows.indptr) if isinstance(rows, SparseRows) else _filled(rows)
        share = float(entries.sum() / (data.num_nodes * data.num_features))
        columns = column_facts(rows, names, labels)
        columns = by_schema(columns, schema) if schema else columns
        columns = columns if missing_cells is None else with_missing(columns, missing_cells, data.num_nodes)
        return cls(tuple(columns), names is not None, sparse, share, int((entries == 0).sum()))

    @property
    def kinds(self) -> dict[ColumnKind, int]:
        return dict(Counter(column.kind for column in self.columns).most_common())

    def to_json(self) -> dict[str, Any]:
        listed = [column for column in self.columns if len(self.columns) <= MAX_COLUMNS_LISTED or column.suspicion]
        values = {"non_zero": self.non_zero, "empty_rows": self.empty_rows, "kinds": self.kinds}
        lists = {"columns": [asdict(column) for column in listed]}
        return {"count": len(self.columns), "named": self.named, "sparse": self.sparse} | values | lists


@dataclass(frozen=True)
class ClassFacts:
    name: str
    nodes: int
    parts: Mapping[str, int]
    """Nodes of the class by part of the split."""


@dataclass(frozen=True)
class LabelFacts:
    task: Task
    metric: str
    labelled: int
    parts: Mapping[str, int]
    """Labelled nodes by part of the split."""
    drawn: str | None
    """How the split was drawn; None if the data has a split."""
    classes: tuple[ClassFacts, ...]
    """Empty for values; for multi-label data, the nodes with label 1."""
    homophily: Homophily | None
    """Multi-class only."""

    @classmethod
    def of(cls, data: LabelledGraph) -> LabelFacts:
        parts = {name: len(data.nodes(part)) for name, part in PARTS.items()}
        labelled = int(is_labelled(data.labels, data.task).sum())
        homophily = Homophily.of(data.graph.adjacency, data.labels) if data.task == "multiclass" else None
        return cls(data.task, data.metric, labelled, parts, data.drawn, tuple(_classes(data)), homophily)


@dataclass(frozen=True)
class DataFacts:
    """`labels` is None for data that is read without labels, or whose labels cannot be read."""

    name: str
    structure: StructureFacts
    features: FeatureFacts
    labels: LabelFacts | None
    scaling: FeatureTransform | None
    """What training does with the features; None if nothing is trained."""
    scaling_reason: str = ""

    @classmethod
    def of(cls, data: LabelledGraph, scaling: FeatureTransform | None = None, reason: str = "") -> DataFacts:
        features = FeatureFacts.of(data.graph, data.feature_names, data.schema, data.labels, data.missing_cells)
        return cls(data.name, StructureFacts.of(data.graph.adjacency), features, LabelFacts.of(data), scaling, reason)

    @classmethod
    def of_graph(
        cls,
        name: str,
        graph: Graph,
        feature_names: tuple[str, ...] | None = None,
        schema: FeatureSchema | None = None,
        missing_cells: Mapping[str, int] | None = None,
    ) -> DataFacts:
        features = FeatureFacts.of(graph, feature_names, schema, missing_cells=missing_cells)
        return cls(name, StructureFacts.of(graph.adjacency), features, None, None)

    def to_json(self) -> dict[str, Any]:
        """The keys are part of the interface of `sgf-train check --json`."""
        labels = None if self.labels is None else asdict(self.labels)
        scaling = {"scaling": self.scaling, "scaling_reason": self.scaling_reason}
        parts = {"features": self.features.to_json(), "labels": labels}
        return {"name": self.name} | asdict(self.structure) | parts | scaling


def _filled(rows: NDArray[Any]) -> NDArray[np.int64]:
    """The number of values of every row that are not zero."""
    blocks = range(0, len(rows), BLOCK_ROWS)  # bounds the memory
    return np.concatenate([np.count_nonzero(rows[start : start + BLOCK_ROWS], axis=1) for start in blocks])


def _classes(data: LabelledGraph) -> list[ClassFacts]:
    if data.task == "regression":
        return []
    names = data.class_names or tuple(map(str, range(data.num_outputs)))
    totals = _class_sizes(data, slice(None))
    by_part = {name: _class_sizes(data, data.nodes(part)) for name, part in PARTS.items()}
    return [
        ClassFacts(name, int(totals[place]), {part: int(counts[place]) for part, counts in by_part.items()})
        for place, name in enumerate(names)
    ]


def _class_sizes(data: LabelledGraph, nodes: Any) -> Any:
    labels = data.labels[nodes]
    if data.task == "multiclass":
        return np.bincount(labels[labels >= 0], minlength=data.num_outputs)
    return (labels == 1).sum(axis=0)
