"""The oracle: the graph as dictionaries by id, changed by operations as requests give them, and a full forward over it."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np

from model_store import Contents
from sgformer import Graph
from sgformer.full_graph.forward import full_logits
from sgformer.request_time.inference import probabilities

KEY = "w" * 16
HEADERS = {"authorization": f"Bearer {KEY}"}
Operation = dict[str, Any]


class Rebuilt:
    def __init__(self, contents: Contents) -> None:
        """The ids of the graph are row numbers."""
        self._contents, graph = contents, contents.graph
        self.features: dict[Any, np.ndarray] = dict(enumerate(np.asarray(graph.features)))
        self.edges = {frozenset(edge) for edge in graph.adjacency.edge_index().T.tolist()}

    def copy(self) -> Rebuilt:
        other = Rebuilt(self._contents)
        other.features, other.edges = dict(self.features), set(self.edges)
        return other

    def apply(self, *operations: Operation) -> Rebuilt:
        for operation in operations:
            op, node = operation["op"], operation.get("id")
            if op in ("add_node", "set_features"):
                self.features[node] = np.array(operation["features"], dtype=np.float32)
                self.edges |= {frozenset((node, other)) for other in operation.get("neighbors", ())}
            elif op == "remove_node":
                del self.features[node]
                self.edges = {edge for edge in self.edges if node not in edge}
            elif op == "add_edge":
                self.edges.add(frozenset((operation["source"], operation["target"])))
            elif op == "remove_edge":
                self.edges.remove(frozenset((operation["source"], operation["target"])))
        return self

    def probabilities(self, contents: Contents | None = None) -> dict[Any, np.ndarray]:
        """Of every node, by id."""
        task = (contents or self._contents).config.task
        return {node: probabilities(logits[None], task)[0] for node, logits in self.logits(contents).items()}

    def logits(self, contents: Contents | None = None) -> dict[Any, np.ndarray]:
        contents = contents or self._contents
        rows = {node: row for row, node in enumerate(self.features)}
        edges = np.array([[rows[node] for node in edge] for edge in self.edges]).T
        graph = Graph.build(np.array(list(self.features.values())), edges)
        logits = full_logits(contents.config, contents.weights, graph)
        return dict(zip(rows, np.asarray(logits), strict=True))


def features(seed: int) -> list[float]:
    values: list[float] = np.random.default_rng(seed).normal(size=5).round(3).tolist()
    return values


def add_node(node: Any, seed: int = 1, *neighbors: Any) -> Operation:
    return {"op": "add_node", "id": node, "features": features(seed), "neighbors": list(neighbors)}


def edge(op: str, source: Any, target: Any) -> Operation:
    return {"op": op, "source": source, "target": target}


def change(client: httpx.Client, *operations: Operation, key: str | None = None, **fields: Any) -> httpx.Response:
    headers = HEADERS if key is None else HEADERS | {"idempotency-key": key}
    return client.post("/graph", json={"operations": operations, **fields}, headers=headers)


def commit(client: httpx.Client, *operations: Operation, key: str | None = None, **fields: Any) -> int:
    """Returns the sequence."""
    response = change(client, *operations, key=key, **fields)
    assert response.status_code == 200, response.text
    sequence: int = response.json()["sequence"]
    return sequence


def predict(client: httpx.Client, **question: Any) -> dict[Any, list[float]]:
    """The probabilities by node."""
    response = client.post("/predict", json=question)
    assert response.status_code == 200, response.text
    return {entry["node"]: entry["probabilities"] for entry in response.json()["predictions"]}


def random_operation(rng: np.random.Generator, rebuilt: Rebuilt) -> Operation:
    nodes = list(rebuilt.features)
    left, right = (int(nodes[place]) for place in rng.choice(len(nodes), 2, replace=False))
    kind = rng.choice(["add_node", "set_features", "remove_node", "edge", "edge"])
    if kind == "add_node":
        free = next(number for number in range(int(rng.integers(0, 200)), 1000) if number not in rebuilt.features)
        return add_node(free, int(rng.integers(99)), left, right)
    if kind == "set_features":
        return {"op": "set_features", "id": left, "features": features(int(rng.integers(99)))}
    if kind == "remove_node":
        return {"op": "remove_node", "id": left}
    return edge("remove_edge" if frozenset((left, right)) in rebuilt.edges else "add_edge", left, right)
