"""The models and questions that all servers are measured with."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from benchmarks.graphs import uniform
from model_store import Contents, Store
from sgformer import Graph, ModelConfig, SGFormer

FEATURES, CLASSES, DEGREE = 64, 10, 10
SMALL, LARGE = 10_000, 1_000_000
Bodies = list[bytes]


def publish(store: str, nodes: int) -> str:
    """Publishes and activates a model with random weights on a graph with random edges. Returns the path of the store."""
    return publish_graph(store, uniform(nodes, 5 * nodes, FEATURES), layers=2)


def publish_graph(store: str, graph: Graph, layers: int) -> str:
    config = ModelConfig(in_features=graph.num_features, out_features=CLASSES, hidden=64, layers=layers)
    Store(store).publish("bench", Contents(config, SGFormer(config).weights(), graph), onnx=False, activate=True)
    return store


def known_nodes(count: int, questions: int = 200) -> Bodies:
    """Questions about `count` random known nodes each, always among the first SMALL nodes of the graph."""
    rng = np.random.default_rng(0)
    return [json.dumps({"nodes": rng.integers(0, SMALL, count).tolist()}).encode() for _ in range(questions)]


def new_nodes(nodes: int) -> Bodies:
    """Questions about one new node each, linked to random nodes of a graph with `nodes` nodes."""
    rng = np.random.default_rng(1)
    return [new_node(rng.normal(size=FEATURES).round(4), rng.integers(0, nodes, DEGREE)) for _ in range(500)]


def new_node(features: Any, neighbors: Any) -> bytes:
    node = {"id": "a", "features": np.asarray(features).tolist(), "neighbors": np.asarray(neighbors).tolist()}
    return json.dumps({"new_nodes": [node]}).encode()
