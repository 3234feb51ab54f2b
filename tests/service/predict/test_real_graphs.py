"""Answers for new nodes of real graphs equal a full forward over the graph with the node added.

The raw files are in SGF_DATA_ROOT, or beside the project. `make soak` also tests debian_trixie (SGF_REAL=all).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from model_store import Contents, Store
from sgformer import Graph, SGFormer, SparseRows, full_logits, probabilities
from tests.service.serving import in_thread
from training.data import datasets
from training.fit.settings import configurations

ROOT = Path(os.environ.get("SGF_DATA_ROOT") or Path(__file__).parents[4] / "shared" / "data")
NAMES = ["cora", "debian"] if os.environ.get("SGF_REAL") == "all" else ["cora"]


@pytest.mark.skipif(not (ROOT / "planetoid").exists(), reason=f"no raw data sets under {ROOT.name}: set SGF_DATA_ROOT")
@pytest.mark.parametrize("name", NAMES)
def test_answers_for_new_nodes_of_every_backend_equal_a_full_forward(name: str, tmp_path: Path) -> None:
    graph, config, weights = sample(name)
    Store(tmp_path).publish(name, Contents(config, weights, graph), activate=True)
    hub = int(graph.adjacency.all_degrees().argmax())
    questions: list[tuple[list[list[int]], list[list[str]]]] = [
        ([[1, 5, 17]], []),
        ([[]], []),
        ([[hub, 3]], []),
        ([[hub], [5, 7]], [["a", "b"]]),
    ]
    rows = [dense(graph, node) for node in (11, 12)]
    frozen_differs = []
    for backend in ("numpy", "onnx", "torch"):
        with in_thread(tmp_path, backend=backend, max_recompute=10**7) as client:
            for neighbors, links in questions:
                nodes = [{"id": "ab"[i], "features": rows[i].tolist(), "neighbors": ids} for i, ids in enumerate(neighbors)]
                question = {"new_nodes": nodes, "edges": links, "joint": bool(links)}
                expected = full_forward(graph, config, weights, rows[: len(neighbors)], neighbors, bool(links))
                np.testing.assert_allclose(predicted(client, question), expected, rtol=0, atol=1e-5)
                frozen_differs.append(np.abs(predicted(client, question | {"mode": "frozen"}) - expected).max())
    assert max(frozen_differs) > 1e-4, "the test can see a difference"


def predicted(client: httpx.Client, question: dict[str, Any]) -> np.ndarray:
    return np.array([entry["probabilities"] for entry in client.post("/predict", json=question).json()["predictions"]])


def sample(name: str) -> tuple[Graph, Any, dict[str, Any]]:
    """The graph, and an untrained model of three layers (debian: two)."""
    data = datasets.load(name, root=ROOT)
    torch.manual_seed(0)
    config, _ = configurations(data, {"layers": 3 if name == "cora" else 2})
    return data.graph, config, SGFormer(config).weights()


def dense(graph: Graph, node: int) -> np.ndarray:
    rows = graph.features[node : node + 1]
    return np.asarray(rows.toarray() if isinstance(rows, SparseRows) else rows)[0]


def full_forward(
    graph: Graph, config: Any, weights: dict[str, Any], rows: list[np.ndarray], neighbors: list[list[int]], linked: bool
) -> np.ndarray:
    known, count = graph.features, graph.num_nodes
    features = np.concatenate([known.toarray() if isinstance(known, SparseRows) else np.asarray(known), np.stack(rows)])
    edges = [(count + i, neighbor) for i, ids in enumerate(neighbors) for neighbor in ids] + [(count, count + 1)] * linked
    added = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    augmented = Graph.build(features.astype(np.float32), np.concatenate([graph.adjacency.edge_index(), added], axis=1))
    return np.asarray(probabilities(full_logits(config, weights, augmented)[count:], "multiclass"))
