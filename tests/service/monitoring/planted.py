"""A model whose answers are known: a node belongs to the community of its neighbours, and only feature 0 is read.

So features, degrees, the mix of classes and confidence can be changed one at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store import Contents
from sgformer import Graph, ModelConfig
from sgformer.weights import expected_shapes

NODES, WIDTH, SHARPNESS = 1000, 5, 100.0
CONFIG = ModelConfig(
    in_features=WIDTH,
    out_features=2,
    hidden=2,
    layers=1,
    alpha=0.99,
    value_map=False,
    attention_residual=None,
    input_layer_norm=False,
    attention_layer_norm=False,
    gnn_weight=False,
    gnn_batch_norm=False,
    gnn_activation=False,
)


def contents(seed: int = 0, **changes: Any) -> Contents:
    """Two communities, linked within. Feature 0 is the community, +1 or -1; the others are noise of several kinds."""
    rng = np.random.default_rng(seed)
    community = np.arange(NODES) % 2
    sources = np.repeat(np.arange(NODES), rng.integers(3, 8, size=NODES))
    targets = rng.integers(0, NODES // 2, size=len(sources)) * 2 + community[sources]
    return Contents(CONFIG, weights(), Graph.build(noise(rng, community * 2 - 1), np.stack([sources, targets])), **changes)


def noise(rng: np.random.Generator, first: np.ndarray) -> np.ndarray:
    count = len(first)
    others = rng.normal(size=count), rng.exponential(size=count), rng.integers(0, 4, size=count), rng.random(count) < 0.05
    return np.stack([first, *others], axis=1).astype(np.float32)


def weights() -> dict[str, np.ndarray]:
    arrays = {name: np.zeros(shape, dtype=np.float32) for name, shape in expected_shapes(CONFIG).items()}
    arrays["input.weight"][:, 0] = 1, -1  # Z0 = (community 1, community 0), as 0 and 1
    arrays["query.weight"][:] = arrays["key.weight"][:] = np.eye(2)
    arrays["output.weight"][:] = [[-SHARPNESS, SHARPNESS], [SHARPNESS, -SHARPNESS]]
    return arrays


class Day:
    """New nodes of a day: nodes of the training graph, drawn again, with their neighbours."""

    def __init__(self, graph: Graph, seed: int, count: int) -> None:
        self.rng = np.random.default_rng(seed)
        rows = self.rng.integers(0, graph.num_nodes, size=count)
        self.features = np.asarray(graph.features)[rows].astype(np.float64)
        self.neighbors = [graph.adjacency.neighbors(np.array([row])) for row in rows]

    def shift_feature(self) -> Day:
        """Feature 1, which the model does not read."""
        self.features[:, 1] += 1.5
        return self

    def change_mix(self) -> Day:
        """Nine in ten nodes come to community 1. Their own feature stays."""
        moved = self.rng.random(len(self.neighbors)) < 0.9
        for node in np.flatnonzero(moved):
            self.neighbors[node] = self.neighbors[node] // 2 * 2 + 1
        return self

    def grow_degrees(self) -> Day:
        """Three times as many neighbours, of the same community."""
        for node, neighbors in enumerate(self.neighbors):
            more = (
                self.rng.integers(0, NODES // 2, size=2 * len(neighbors)) * 2 + neighbors[0] % 2
                if len(neighbors)
                else neighbors
            )
            self.neighbors[node] = np.unique(np.concatenate([neighbors, more]))
        return self

    def lose_confidence(self) -> Day:
        """As many neighbours in one community as in the other."""
        for node, neighbors in enumerate(self.neighbors):
            self.neighbors[node] = neighbors // 2 * 2 + np.arange(len(neighbors)) % 2
        return self

    def new_nodes(self) -> list[dict[str, Any]]:
        pairs = zip(self.features.tolist(), self.neighbors, strict=True)
        return [{"id": f"n{place}", "features": row, "neighbors": ids.tolist()} for place, (row, ids) in enumerate(pairs)]
