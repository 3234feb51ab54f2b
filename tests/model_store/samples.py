"""Small models and graphs for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store import Contents, Store
from sgformer import Graph, ModelConfig
from tests.sgformer.cases import random_weights

NODES, FEATURES, CLASSES = 60, 5, 3
FILES = [
    "weights.safetensors",
    "sums.safetensors",
    "probes.safetensors",
    "graph/indptr.npy",
    "graph/indices.npy",
    "graph/features.npy",
    "graph/labels.npy",
    "graph/split.npy",
    "states/inputs.npy",
    "states/layer_1.npy",
    "states/layer_2.npy",
    "states/logits.npy",
    "states/aggregate_1.npy",
    "states/degrees.npy",
    "states/unit_embeddings.npy",
    "states/map.npy",
]
"""The files of a small snapshot with two layers, without the manifest."""


def small_graph(seed: int = 0, nodes: int = NODES) -> Graph:
    """With a hub (node 0) and a node without edges (the last)."""
    rng = np.random.default_rng(seed)
    edges = np.concatenate([rng.integers(0, nodes - 1, size=(2, 80)), [np.zeros(20), np.arange(1, 21)]], axis=1)
    return Graph.build(rng.normal(size=(nodes, FEATURES)).astype(np.float32), edges.astype(np.int64))


def small_contents(seed: int = 0, graph: Graph | None = None, **changes: Any) -> Contents:
    graph = graph or small_graph(seed)
    settings = {"in_features": FEATURES, "out_features": CLASSES, "hidden": 4, "layers": 2} | changes.pop("config", {})
    config = ModelConfig(**settings)
    weights = {name: (array / 4).astype(np.float32) for name, array in random_weights(config, seed).items()}
    return Contents(config, weights, graph, **changes)


def small_labels() -> dict[str, Any]:
    """Classes and parts of the nodes; the last node has none."""
    nodes = np.arange(NODES)
    last = nodes == NODES - 1
    return {"labels": np.where(last, -1, nodes % CLASSES), "split": np.where(last, -1, nodes // 2 % 3).astype(np.int8)}


def publish(store: Store, seed: int = 0, model: str = "demo", **options: Any) -> int:
    return store.publish(model, small_contents(seed, **small_labels()), onnx=False, **options)
