"""Similar nodes over HTTP: the recall of the index, and the latency, compared with that of /predict for the same new nodes.

python -m benchmarks.groups.similar [NODES]      by default a million

The graph has classes, and the model is trained on a smaller graph of the same kind: embeddings of random weights have no
clusters, unlike the embeddings that users search.
"""

from __future__ import annotations

import json
import sys
import tempfile
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.load import closed, request
from benchmarks.results import Loads, Result, at_most
from benchmarks.servers import Server, service
from benchmarks.workload import FEATURES
from model_store import Contents, Store
from sgformer import Graph, ModelConfig, SGFormer
from sgformer.nearest.scan import nearest

NODES, TRAINING_NODES, CLASSES, EPOCHS = 1_000_000, 10_000, 40, 60
K, QUERIES, NEIGHBORS, ROUNDS, SECONDS = 10, 200, 10, 7, 1.5
MIN_RECALL, MAX_RATIO = 0.99, 5.0
ROUNDING = 2e-6
"""Allowed difference of a similarity between the service and the scan: the rounding of float32."""


def similar(nodes: int = NODES) -> list[Result]:
    with tempfile.TemporaryDirectory() as root:
        _publish(root, nodes)
        with service(root) as server:
            recall = _recall(server, Path(root), nodes)
            similar_loads, predict_loads = _latencies(server, nodes)
    claim = f"recall of the nearest {K} of {QUERIES} nodes among {nodes:,}, against an exact scan"
    return [
        Result(claim, f"{recall:.4f}", "1", recall, f">= {MIN_RECALL}", bool(recall >= MIN_RECALL)),
        at_most(
            f"p50 of /similar against an exact /predict, the same new nodes, {nodes:,} nodes",
            similar_loads.latencies(0.5, 0.99),
            predict_loads.latencies(0.5, 0.99),
            similar_loads.quantile(0.5) / predict_loads.quantile(0.5),
            MAX_RATIO,
            valid=not similar_loads.unanswered,
        ),
    ]


def class_graph(nodes: int, seed: int) -> tuple[Graph, np.ndarray]:
    """Features around the centre of a class, and four of five edges within the class."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(7).normal(size=(CLASSES, FEATURES))  # the same for every graph
    labels = np.sort(rng.integers(0, CLASSES, nodes))
    features = centres.astype(np.float32)[labels]
    features += rng.standard_normal((nodes, FEATURES), dtype=np.float32)
    starts = np.searchsorted(labels, np.arange(CLASSES + 1))
    left = rng.integers(0, nodes, 5 * nodes)
    within = starts[labels[left]] + (rng.random(len(left)) * np.diff(starts)[labels[left]]).astype(np.int64)
    right = np.where(rng.random(len(left)) < 0.8, within, rng.integers(0, nodes, len(left)))
    return Graph.build(features, np.stack([left, right])), labels


def _publish(root: str, nodes: int) -> None:
    torch.manual_seed(0)
    small, labels = class_graph(TRAINING_NODES, seed=0)
    model = SGFormer(ModelConfig(in_features=FEATURES, out_features=CLASSES, hidden=64, layers=2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    inputs, targets = model.prepare(small), torch.from_numpy(labels)
    for _ in range(EPOCHS):
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    graph, _ = class_graph(nodes, seed=1)
    Store(root).publish("bench", Contents(model.config, model.weights(), graph), onnx=False, activate=True)


def _recall(server: Server, root: Path, nodes: int) -> float:
    """The recall of the answers, against a scan of the stored embeddings."""
    with Store(root).model("bench").open(verify="sizes") as snapshot:
        print("index:", (snapshot.manifest.embeddings or {})["index"], flush=True)
        rows = np.arange(QUERIES) * nodes // QUERIES
        stored = np.asarray(snapshot.unit_embeddings)
        least = nearest(stored, stored[rows], K + 1).similarities[:, -1]  # K + 1: a node finds itself, /similar omits it
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    hits = 0
    for row, limit in zip(rows.tolist(), least, strict=True):
        body = json.dumps({"nodes": [row], "k": K})
        connection.request("POST", "/similar", body, {"content-type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        hits += sum(entry["similarity"] >= limit - ROUNDING for entry in answer["results"][0]["neighbors"])
    connection.close()
    return hits / (QUERIES * K)


def _latencies(server: Server, nodes: int) -> tuple[Loads, Loads]:
    """The loads of /similar and of /predict, in turns over one connection."""
    bodies = {"/similar": [], "/predict": []}
    rng = np.random.default_rng(2)
    drawn, _ = class_graph(300, seed=3)
    for features in np.asarray(drawn.features).round(4):
        node = {"id": "a", "features": features.tolist(), "neighbors": rng.integers(0, nodes, NEIGHBORS).tolist()}
        for path, more in (("/similar", {"k": K}), ("/predict", {})):
            bodies[path].append(request(json.dumps({"new_nodes": [node], **more}).encode(), path, server.port))
    loads = {path: Loads() for path in bodies}
    for number in range(ROUNDS + 1):
        for path, requests in bodies.items():
            load = closed(server.port, requests, 1, SECONDS)
            if number:  # the first round warms up
                loads[path].append(load)
    return loads["/similar"], loads["/predict"]


if __name__ == "__main__":
    for result in similar(*map(int, sys.argv[1:2])):
        print(f"{result.claim}: {result.ours}, against {result.against}: {result.shown_ratio} {result.verdict}")
