"""New nodes of a model whose features are made of the edges: a request need not have them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest

from model_store import Contents, NodeIds, Store
from model_store.run_settings import Structural
from model_store.structural import SCHEMAS, StructuralFeatures, values_of_neighbors
from sgformer import Graph, full_logits, probabilities
from sgformer_client.client import add_node, new_node
from tests.model_store.samples import NODES, small_contents, small_graph
from tests.service.serving import in_thread

EDGES = small_graph().adjacency.edge_index()


class Served(NamedTuple):
    client: httpx.Client
    kind: Structural
    contents: Contents

    def expected(self, ids: list[int | str], edges: list[tuple[int, int]], later: Sequence[tuple[int, int]] = ()) -> Any:
        """The full forward: known nodes have the features of training, new nodes those of the graph with them.

        `ids`: of the new nodes, whose rows follow those of the graph. `later`: edges that came after the features.
        """
        graph = self.contents.graph
        empty = np.zeros((len(ids), self.contents.config.in_features), dtype=np.float32)
        adjacency = graph.with_nodes(empty, np.array(edges).T).adjacency
        features = StructuralFeatures(self.kind, adjacency, NodeIds.build([*map(str, range(NODES)), *map(str, ids)]))[NODES:]
        grown = graph.with_nodes(features, np.array([*edges, *later]).T)
        return probabilities(full_logits(self.contents.config, self.contents.weights, grown)[NODES:], "multiclass")


@pytest.fixture(scope="module", params=["degree", "random"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    kind, folder = request.param, tmp_path_factory.mktemp("structural")
    features = StructuralFeatures(kind, small_graph().adjacency, None)[:]
    contents = small_contents(
        graph=Graph.build(features, EDGES),
        config={"in_features": features.shape[1]},
        features=SCHEMAS[kind],
        reading={"structural": kind},
        node_ids=None,
    )
    Store(folder).publish("demo", contents, onnx=False, activate=True)
    with in_thread(folder) as client:
        yield Served(client, kind, contents)


def answers(client: httpx.Client, **question: Any) -> Any:
    response = client.post("/predict", json=question)
    assert response.status_code == 200, response.text
    predictions = response.json()["predictions"]
    assert {prediction["exactness"] for prediction in predictions} == {"exact"}
    return [prediction["probabilities"] for prediction in predictions]


def test_the_features_of_a_new_node_follow_from_its_neighbours(served: Served) -> None:
    client, without = served.client, {"id": "a", "neighbors": [1, 2, 2, 5]}
    forms = [without, without | {"features": {}}, without | {"features": {"log2_degree": None}}]
    values = values_of_neighbors(served.kind, [1, 2, 5])
    sent = [without | {"features": {"log2_degree": 2}}, without | {"features": list(values.values())}]
    wanted = served.expected(["a"], [(NODES, node) for node in (1, 2, 5)])
    for node in (*forms, *sent):
        np.testing.assert_allclose(answers(client, new_nodes=[node]), wanted, atol=1e-6)
    other = answers(client, new_nodes=[without | {"features": [7.0] * len(values)}])
    assert np.abs(np.array(other) - wanted).max() > 1e-3, "a feature that is sent is used"


def test_edges_between_new_nodes_count(served: Served) -> None:
    nodes = [new_node("a", neighbors=[3, 4]), new_node("b"), new_node("c", neighbors=[3])]
    edges = [("a", "b"), ("b", "a"), ("b", "c")]
    a, b, c = range(NODES, NODES + 3)
    wanted = served.expected(["a", "b", "c"], [(a, 3), (a, 4), (a, b), (b, c), (c, 3)])
    np.testing.assert_allclose(answers(served.client, new_nodes=nodes, edges=edges, joint=True), wanted, atol=1e-6)


def test_a_node_that_is_added_to_the_graph_keeps_the_features_of_its_first_edges(served: Served) -> None:
    operations = [add_node(NODES, neighbors=[3, 4, 4]), {"op": "add_edge", "source": NODES, "target": 7}]
    assumed = served.client.post("/predict", json={"nodes": [NODES], "assuming": operations})
    wanted = served.expected([NODES], [(NODES, 3), (NODES, 4)], later=[(NODES, 7)])[0]
    np.testing.assert_allclose(assumed.json()["predictions"][0]["probabilities"], wanted, atol=1e-6)
    operations = [{"op": "set_features", "id": 3, "features": {}}]
    refused = served.client.post("/predict", json={"nodes": [3], "assuming": operations})
    assert refused.json()["error"] == "operation 0: node 3: feature 'log2_degree' is missing, expected a number"


def test_a_name_that_the_model_does_not_have_is_refused(served: Served) -> None:
    node = {"id": "a", "neighbors": [1], "features": {"log2_degre": None}}
    refused = served.client.post("/predict", json={"new_nodes": [node]})
    assert refused.status_code == 422
    assert refused.json()["error"] == (
        "new node 'a': feature 'log2_degre' is not a feature of this model; did you mean 'log2_degree'?"
    )


def test_a_neighbour_that_is_no_text_is_refused(served: Served) -> None:
    body = b'{"new_nodes": [{"id": "a", "neighbors": ["\\ud800"]}]}'
    refused = served.client.post("/predict", content=body, headers={"content-type": "application/json"})
    assert refused.status_code in (400, 404), refused.text
