"""The pages about the data: a node, the classes, the features."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest

from model_store import NodeIds, Store
from sgformer import Graph, SparseRows
from tests.model_store.samples import NODES, small_contents, small_graph, small_labels
from tests.service.live.rebuilt import KEY
from tests.service.named import IDS, SCHEMA, fan
from tests.service.serving import in_thread, refused


def test_a_node_has_its_features_by_name(named_client: httpx.Client) -> None:
    answer = named_client.get("/nodes/fan-8").json()
    neighbors = [IDS[row] for row in small_graph().adjacency.neighbors(np.array([8]))]
    assert {name: answer[name] for name in ("model", "version", "node")} == {"model": "fans", "version": 1, "node": "fan-8"}
    assert (answer["features"], answer["neighbors"], answer["degree"]) == (fan(8), neighbors, len(neighbors))
    assert (answer["label"], answer["class"], answer["split"]) == (2, 'so "so"', "validation")


def test_what_a_node_says_of_itself_can_be_sent_back(named_client: httpx.Client) -> None:
    features = named_client.get("/nodes/a%20b").json()["features"]
    assert features["age"] is None, "it was missing, and is filled in again"
    by_name = {"id": "n", "features": features, "neighbors": ["fan-7"]}
    as_list = by_name | {"features": SCHEMA.encode(fan(1)).astype(np.float32).tolist()}
    first, second = (named_client.post("/predict", json={"new_nodes": [node]}).json() for node in (by_name, as_list))
    assert first["predictions"][0]["label"] == second["predictions"][0]["label"]


@pytest.mark.parametrize("node", IDS[:8])
def test_any_id_fits_into_a_path(named_client: httpx.Client, node: str) -> None:
    path = quote(node, safe="").replace(".", "%2E")
    assert named_client.get(f"/nodes/{path}").json()["node"] == node


def test_neighbours_are_limited_and_counted(named_client: httpx.Client) -> None:
    for limit, count in ((0, 0), (2, 2), (10_000, 23)):
        answer = named_client.get(f"/nodes/a%2Fb?limit={limit}").json()
        assert (len(answer["neighbors"]), answer["degree"]) == (count, 23)


def test_nodes_are_listed_in_parts(named_client: httpx.Client) -> None:
    start, listed = 0, []
    while start is not None:
        part = named_client.get(f"/nodes?start={start}&limit=25").json()
        assert part["version"] == 1
        listed += part["nodes"]
        start = part["next"]
    assert [node["node"] for node in listed] == IDS
    alone = named_client.get("/nodes/fan-8?limit=0").json()
    assert listed[8] == {name: alone[name] for name in ("node", "degree", "features", "label", "class", "split")}
    assert named_client.get("/nodes?start=60").json()["nodes"] == []
    refused(named_client.get("/nodes?limit=201"), 422, "invalid")


def test_a_list_of_wide_nodes_is_shorter(named_client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.http.data_routes.MAX_LISTED_VALUES", 4 * SCHEMA.width)
    part = named_client.get("/nodes").json()
    assert (len(part["nodes"]), part["next"]) == (4, 4)


def test_a_removed_node_is_not_listed(live: httpx.Client) -> None:
    change = {"operations": [{"op": "remove_node", "id": 1}, {"op": "add_node", "id": 100, "features": [0.5] * 5}]}
    assert live.post("/graph", json=change, headers={"authorization": f"Bearer {KEY}"}).status_code == 200
    part = live.get("/nodes").json()
    assert [node["node"] for node in part["nodes"]] == [0, *range(2, NODES), 100]
    assert (part["sequence"], part["nodes"][-1]["features"], part["next"]) == (1, [0.5] * 5, None)


def test_numbers_are_ids_where_the_graph_has_numbers(client: httpx.Client, tmp_path: Path) -> None:
    answer = client.get("/nodes/8").json()
    assert (answer["node"], answer["features"]) == (8, pytest.approx(small_graph().features[8].tolist()))
    assert "label" not in answer, "this snapshot has no labels"
    for path in ("60", "-1", "08", "8.0", "+8", "x", "9" * 30):
        message = refused(client.get(f"/nodes/{path}"), 404, "unknown_node")
        assert message.endswith("is not in the graph, expected ids from 0 to 59")
    own = NodeIds.build(np.arange(NODES) - 5)
    Store(tmp_path).publish("demo", small_contents(node_ids=own, **small_labels()), onnx=False, activate=True)
    with in_thread(tmp_path) as other:
        answer = other.get("/nodes/-5").json()
        assert (answer["node"], answer["label"], answer["class"], answer["split"]) == (-5, 0, "0", "train")
        answer = other.get("/nodes/54").json()
        assert (answer["label"], answer["class"], answer["split"], answer["degree"]) == (None, None, None, 0)
        refused(other.get("/nodes/55"), 404, "unknown_node")


def test_sparse_features_stay_sparse_and_raw_data_may_be_missing(tmp_path: Path) -> None:
    dense = np.zeros((NODES, 5), dtype=np.float32)
    dense[8, [1, 3]] = 0.1, -2
    rows, columns = np.nonzero(dense)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=NODES))])
    sparse = SparseRows(indptr, columns, dense[rows, columns], 5)
    graph = Graph.build(sparse, small_graph().adjacency.edge_index())
    Store(tmp_path).publish("sparse", small_contents(graph=graph), onnx=False, activate=True)
    Store(tmp_path).publish("bare", small_contents(**small_labels()), onnx=False, activate=True, raw_data=False)
    with in_thread(tmp_path, model="sparse") as client:
        assert client.get("/nodes/8").json()["features"] == {"indices": [1, 3], "values": [0.1, -2]}
        assert client.get("/nodes/9").json()["features"] == {"indices": [], "values": []}
    with in_thread(tmp_path, model="bare") as client:
        assert set(client.get("/nodes/8").json()) == {"model", "version", "snapshot", "node", "degree", "neighbors"}


@pytest.mark.parametrize(
    ("task", "outputs", "labels", "expected"),
    [
        ("multilabel", 3, [1, 0, 1], {"labels": [0, 2], "classes": ["x", "z"]}),
        ("multilabel", 3, [np.nan, 1, 0], {"labels": [1], "classes": ["y"]}),
        ("multilabel", 3, [np.nan] * 3, {"labels": None, "classes": None}),
        ("regression", 1, [0.1], {"value": 0.1}),
        ("regression", 1, [-1], {"value": -1.0}),
        ("regression", 1, [np.nan], {"value": None}),
        ("regression", 2, [1.5, np.nan], {"value": [1.5, None]}),
    ],
)
def test_labels_of_other_tasks(tmp_path: Path, task: str, outputs: int, labels: list[float], expected: Any) -> None:
    rows = np.tile(np.array(labels, dtype=np.float32), (NODES, 1))
    names = ("x", "y", "z") if task == "multilabel" else None
    contents = small_contents(config={"task": task, "out_features": outputs}, labels=rows, classes=names)
    Store(tmp_path).publish("demo", contents, onnx=False, activate=True)
    with in_thread(tmp_path) as client:
        answer = client.get("/nodes/3").json()
        classes = client.get("/classes").json()
        assert client.get("/openapi.json").status_code == 200
    described = {"model", "version", "snapshot", "node", "degree", "neighbors", "features"}
    assert {name: value for name, value in answer.items() if name not in described} == expected
    assert (classes["task"], len(classes["classes"])) == (task, 3 if task == "multilabel" else 0)


def test_the_classes_and_the_features(client: httpx.Client, named_client: httpx.Client) -> None:
    classes = [{"label": label, "class": name} for label, name in enumerate("xyz")]
    assert client.get("/classes").json()["classes"] == classes
    unnamed = client.get("/features").json()
    assert (unnamed["width"], unnamed["transform"], unnamed["features"]) == (5, "none", None)
    named = named_client.get("/features").json()
    assert (named["width"], named["transform"]) == (SCHEMA.width, "standard")
    places = [(entry["name"], entry["position"], entry["width"]) for entry in named["features"]]
    assert places == [("days", 0, 1), ("partner", 1, 1), ("genre", 2, 2), ("joined", 4, 1), ("age", 5, 2)]
    assert named["features"][2]["categories"] == ["jazz", "rock"]
    assert {key: named["features"][4][key] for key in ("fill", "flag")} == {"fill": 30, "flag": True}


def test_they_need_a_key_and_a_version(store: Path, tmp_path: Path) -> None:
    paths = ("/nodes/1", "/classes", "/features")
    with in_thread(store, api_keys=("k" * 16,)) as client:
        for path in paths:
            refused(client.get(path), 401, "unauthorized")
            assert client.get(path, headers={"authorization": f"Bearer {'k' * 16}"}).status_code == 200
        document = client.get("/openapi.json").json()["paths"]
        assert all("example" not in document[path]["get"]["responses"]["200"] for path in paths[1:]), "it is public"
    with in_thread(tmp_path) as client:
        for path in paths:
            refused(client.get(path), 503, "not_ready")


def test_they_are_counted_by_route_and_documented_with_examples(named_store: Path) -> None:
    with in_thread(named_store) as client:
        document = client.get("/openapi.json").json()["paths"]
        node = document["/nodes/{node_id}"]["get"]
        assert client.get(f"/nodes/{quote(node['parameters'][0]['example'], safe='')}?limit=3").json() == shown(node)
        for path in ("/classes", "/features"):
            assert client.get(path).json() == shown(document[path]["get"])
        examples = document["/predict"]["post"]["requestBody"]["content"]["application/json"]["examples"]
        assert "named" in examples
        for example in examples.values():
            assert client.post("/predict", json=example["value"]).status_code == 200
        assert 'sgf_requests_total{code="200",route="/nodes/{node_id}"} 1.0' in client.get("/metrics").text


def shown(operation: Any) -> Any:
    return operation["responses"]["200"]["content"]["application/json"]["example"]
