"""New nodes of a model whose only feature is made of the number of neighbours: a request need not have it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from model_store import Store
from model_store.structural import SCHEMA, structural_features
from sgformer import Graph, full_logits, probabilities
from sgformer_client.client import add_node, new_node
from tests.model_store.samples import NODES, small_contents, small_graph
from tests.service.serving import in_thread

EDGES = small_graph().adjacency.edge_index()
GRAPH = Graph.build(structural_features(small_graph().adjacency), EDGES)
CONTENTS = small_contents(
    graph=GRAPH, config={"in_features": 1}, features=SCHEMA, reading={"structural": "degree"}, node_ids=None
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("structural")
    Store(folder).publish("demo", CONTENTS, onnx=False, activate=True)
    with in_thread(folder) as client:
        yield client


def expected(count: int, edges: list[tuple[int, int]]) -> Any:
    """The full forward: known nodes have the features of training, new nodes those of the graph with them."""
    features = np.zeros((count, 1), dtype=np.float32)
    grown = GRAPH.with_nodes(features, np.array(edges).T)
    features = structural_features(grown.adjacency)[NODES:]
    logits = full_logits(CONTENTS.config, CONTENTS.weights, GRAPH.with_nodes(features, np.array(edges).T))
    return probabilities(logits[NODES:], "multiclass")


def answers(client: httpx.Client, **question: Any) -> Any:
    response = client.post("/predict", json=question)
    assert response.status_code == 200, response.text
    predictions = response.json()["predictions"]
    assert {prediction["exactness"] for prediction in predictions} == {"exact"}
    return [prediction["probabilities"] for prediction in predictions]


def test_the_feature_of_a_new_node_is_its_number_of_neighbours(client: httpx.Client) -> None:
    without = {"id": "a", "neighbors": [1, 2, 2, 5]}
    forms = [without, without | {"features": {}}, without | {"features": {"log2_degree": None}}]
    sent = [without | {"features": {"log2_degree": 2}}, without | {"features": [2.0]}]
    wanted = expected(1, [(NODES, node) for node in (1, 2, 5)])
    for node in (*forms, *sent):
        np.testing.assert_allclose(answers(client, new_nodes=[node]), wanted, atol=1e-6)
    other = answers(client, new_nodes=[without | {"features": [7.0]}])
    assert np.abs(np.array(other) - wanted).max() > 1e-3, "a feature that is sent is used"


def test_edges_between_new_nodes_count(client: httpx.Client) -> None:
    nodes = [new_node("a", neighbors=[3, 4]), new_node("b"), new_node("c", neighbors=[3])]
    edges = [("a", "b"), ("b", "a"), ("b", "c")]
    wanted = expected(3, [(NODES, 3), (NODES, 4), (NODES, NODES + 1), (NODES + 1, NODES + 2), (NODES + 2, 3)])
    np.testing.assert_allclose(answers(client, new_nodes=nodes, edges=edges, joint=True), wanted, atol=1e-6)


def test_a_node_that_is_added_to_the_graph_keeps_the_feature_of_its_first_edges(client: httpx.Client) -> None:
    operations = [add_node(NODES, neighbors=[3, 4, 4]), {"op": "add_edge", "source": NODES, "target": 7}]
    assumed = client.post("/predict", json={"nodes": [NODES], "assuming": operations})
    grown = GRAPH.with_nodes(np.log2([[3]]).astype(np.float32), np.array([[NODES] * 3, [3, 4, 7]]))
    logits = full_logits(CONTENTS.config, CONTENTS.weights, grown)[NODES:]
    wanted = probabilities(logits, "multiclass")[0]
    np.testing.assert_allclose(assumed.json()["predictions"][0]["probabilities"], wanted, atol=1e-6)
    operations = [{"op": "set_features", "id": 3, "features": {}}]
    refused = client.post("/predict", json={"nodes": [3], "assuming": operations})
    assert refused.json()["error"] == "operation 0: node 3: feature 'log2_degree' is missing, expected a number"
