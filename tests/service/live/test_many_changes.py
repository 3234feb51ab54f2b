"""float32 over HTTP after many random operations on a graph with a hub: known and new nodes equal the full forward.

SGF_OPERATIONS: 100,000 in `make soak`, on a graph of 10,000 nodes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from model_store import Store
from sgformer import Graph
from sgformer.full_graph.forward import full_logits
from sgformer.request_time.inference import probabilities
from tests.model_store.samples import small_contents
from tests.service.live.rebuilt import KEY, commit, predict
from tests.service.serving import in_thread

OPERATIONS = int(os.environ.get("SGF_OPERATIONS", "2000"))
NODES, CHECKED = (10_000, 1000) if OPERATIONS >= 100_000 else (500, 30)
FEATURES, HUB, BATCH = 5, 0, 500


class Oracle:
    """The graph as features and neighbours by id, and random operations on it. Node 0 is linked to all others at first."""

    def __init__(self, graph: Graph) -> None:
        self.features = {row: np.asarray(graph.features)[row] for row in range(graph.num_nodes)}
        self.neighbors = {row: set(graph.adjacency.neighbors(np.array([row])).tolist()) for row in self.features}
        self._ids, self._next = list(self.features), graph.num_nodes

    def operation(self, rng: np.random.Generator) -> dict[str, Any]:
        left, right = self.pick(rng), HUB if rng.random() < 0.3 else self.pick(rng)
        kind = rng.random()
        if kind < 0.2:
            return self._add(rng, {left, right})
        if left in (HUB, right):
            return self._set_features(rng, left)
        if kind < 0.3 and len(self._ids) > NODES // 2:
            return self._remove(left)
        if kind < 0.5:
            return self._set_features(rng, left)
        op = "remove_edge" if right in self.neighbors[left] else "add_edge"
        self.neighbors[left] ^= {right}
        self.neighbors[right] ^= {left}
        return {"op": op, "source": left, "target": right}

    def pick(self, rng: np.random.Generator) -> int:
        return self._ids[int(rng.integers(len(self._ids)))]

    def logits(self, contents: Any, **new: Any) -> tuple[list[int], np.ndarray]:
        """The ids, and the logits of the full forward; a new node (`features`, `neighbors`) is the last row."""
        ids = list(self.features)
        rows = {node: row for row, node in enumerate(ids)}
        edges = [(rows[node], rows[other]) for node in ids for other in self.neighbors[node] if node < other]
        features = [self.features[node] for node in ids]
        if new:
            edges += [(rows[other], len(ids)) for other in new["neighbors"]]
            features.append(new["features"])
        graph = Graph.build(np.array(features, dtype=np.float32), np.array(edges).T)
        return ids, np.asarray(full_logits(contents.config, contents.weights, graph))

    def _add(self, rng: np.random.Generator, neighbors: set[int]) -> dict[str, Any]:
        node, self._next = self._next, self._next + 1
        self._ids.append(node)
        self.neighbors[node] = neighbors
        for other in neighbors:
            self.neighbors[other].add(node)
        return self._set_features(rng, node) | {"op": "add_node", "neighbors": sorted(neighbors)}

    def _remove(self, node: int) -> dict[str, Any]:
        place = self._ids.index(node)
        self._ids[place] = self._ids[-1]
        self._ids.pop()
        for other in self.neighbors.pop(node):
            self.neighbors[other].remove(node)
        del self.features[node]
        return {"op": "remove_node", "id": node}

    def _set_features(self, rng: np.random.Generator, node: int) -> dict[str, Any]:
        values = rng.normal(size=FEATURES).astype(np.float32)
        self.features[node] = values
        return {"op": "set_features", "id": node, "features": values.tolist()}


def test_answers_after_many_operations(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    edges = np.concatenate([rng.integers(0, NODES, (2, 3 * NODES)), [np.zeros(NODES, np.int64), np.arange(NODES)]], axis=1)
    graph = Graph.build(rng.normal(size=(NODES, FEATURES)).astype(np.float32), edges)
    contents = small_contents(1, graph, config={"layers": 2, "hidden": 16})
    Store(tmp_path).publish("demo", contents, onnx=False, activate=True)
    oracle = Oracle(graph)
    settings = {"compact_changes": 0, "max_recompute": 10**7, "deadline_seconds": 300.0}
    with in_thread(tmp_path, write_keys=(KEY,), **settings) as client:
        client.timeout = 300  # the first expensive request waits until the compute process has applied all changes
        for number in range(OPERATIONS // BATCH):
            commit(client, *(oracle.operation(rng) for _ in range(BATCH)))
            if number % 5 == 0:  # reads in between make totals that later changes update
                predict(client, nodes=[oracle.pick(rng) for _ in range(50)])
        ids, logits = oracle.logits(contents)
        asked = {oracle.pick(rng) for _ in range(CHECKED)} | {HUB}
        expected = dict(zip(ids, probabilities(logits, "multiclass"), strict=True))
        for node, answer in predict(client, nodes=list(asked)).items():
            np.testing.assert_allclose(answer, expected[node], atol=1e-5)
        for number in range(CHECKED):
            neighbors = sorted({oracle.pick(rng) for _ in range(5)} | ({HUB} if number % 10 == 0 else set()))
            new = {"features": rng.normal(size=FEATURES).round(3).tolist(), "neighbors": neighbors}
            answer = predict(client, new_nodes=[{"id": "n", **new}])["n"]
            np.testing.assert_allclose(
                answer, probabilities(oracle.logits(contents, **new)[1][-1:], "multiclass")[0], atol=1e-5
            )
