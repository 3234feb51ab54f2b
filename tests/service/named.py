"""A model whose features have names, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store import Contents, FeatureColumn, FeatureSchema, NodeIds
from sgformer import Graph
from tests.model_store.samples import small_contents, small_graph, small_labels

SCHEMA = FeatureSchema(
    (
        FeatureColumn("days", "number"),
        FeatureColumn("partner", "boolean"),
        FeatureColumn("genre", "category", ("jazz", "rock")),
        FeatureColumn("joined", "date"),
        FeatureColumn("age", "number", fill=30.0, flag=True),
    )
)
FAN: dict[str, Any] = {"days": 100, "partner": True, "genre": "rock", "joined": "2024-01-31", "age": 0.1}
IDS = ["a/b", "a b", "é", "..", "%41", "7", "", *(f"fan-{row}" for row in range(7, 60))]
IDS[6] = "x?y#z"


def fan(row: int) -> dict[str, Any]:
    """The features of a node of the graph."""
    days, genre = row / 10, "jazz" if row % 2 else "rock"
    return FAN | {"days": days, "genre": genre, "partner": row % 3 == 0, "age": None if row == 1 else 20.0 + row}


def named_contents(**changes: Any) -> Contents:
    rows = np.array([SCHEMA.encode(fan(row)) for row in range(len(IDS))], dtype=np.float32)
    graph = Graph.build(rows, small_graph().adjacency.edge_index())
    parts: dict[str, Any] = {"classes": ("loud", "50%", 'so "so"'), "features": SCHEMA, "node_ids": NodeIds.build(IDS)}
    config = {"in_features": SCHEMA.width, "feature_transform": "standard"} | changes.pop("config", {})
    return small_contents(graph=graph, config=config, **(parts | small_labels() | changes))
