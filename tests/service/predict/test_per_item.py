"""`on_error: per_item`: a node without an answer gets its error, and the others their answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from model_store import Store
from tests.model_store.samples import small_contents
from tests.service.serving import in_thread, refused

GOOD = {"features": [1.0, 2.0, 3.0, 4.0, 5.0], "neighbors": [3]}
BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "neighbour": (GOOD | {"neighbors": [3, 60]}, "unknown_node", "new node 'neighbour' has an unknown neighbour: node 60"),
    "short": (GOOD | {"features": [1.0]}, "invalid", "new node 'short' has 1 features, expected 5"),
    "large": (
        GOOD | {"features": [1e39] * 5},
        "invalid",
        "new node 'large': features hold NaN, infinity or more than 3.4e38",
    ),
    "nan": (GOOD | {"features": [float("nan")] * 5}, "invalid", "new node 'nan': features hold NaN, infinity or more"),
    "named": (
        GOOD | {"features": {"days": 1}},
        "invalid",
        "new node 'named' has features by name, and version 1 was trained",
    ),
    "null": (GOOD | {"features": [None] * 5}, "invalid", "features.0: Input should be a valid number"),
    "text": (GOOD | {"features": "x"}, "invalid", "features: Input should be a valid array or an object"),
    "missing": ({}, "invalid", "new node 'missing' has no features; expected a list of 5 numbers"),
    "index": (GOOD | {"features": {"indices": [9], "values": [1.0]}}, "invalid", "new node 'index' has feature index 9"),
    "field": (GOOD | {"colour": 1}, "invalid", "colour: Extra inputs are not permitted"),
}


def post(client: httpx.Client, question: dict[str, Any], path: str = "/predict") -> httpx.Response:
    content = json.dumps({"on_error": "per_item"} | question)  # httpx itself refuses NaN
    return client.post(path, content=content, headers={"content-type": "application/json"})


def test_every_kind_of_error_stands_where_its_node_was(client: httpx.Client) -> None:
    good = {f"good-{place}": GOOD | {"features": [float(place)] * 5} for place in range(len(BAD))}
    mixed = [node for pair in zip(good, BAD, strict=True) for node in pair]
    nodes = [{"id": name} | (good[name] if name in good else BAD[name][0]) for name in mixed]
    predictions = post(client, {"nodes": [5, 99, 7, "x"], "new_nodes": nodes, "top_k": 1}).json()["predictions"]
    assert [entry["node"] for entry in predictions] == [5, 99, 7, "x", *mixed]
    assert predictions[1] == {
        "node": 99,
        "error": "node 99 is not in the graph, expected ids from 0 to 59",
        "code": "unknown_node",
    }
    for name, entry in zip(mixed, predictions[4:], strict=True):
        if name in BAD:
            _, code, message = BAD[name]
            assert set(entry) == {"node", "error", "code"}
            assert entry["code"] == code
            assert entry["error"].startswith(message)
    answered = [entry for entry in predictions if "error" not in entry]
    question = {"nodes": [5, 7], "new_nodes": [{"id": name} | node for name, node in good.items()], "top_k": 1}
    assert client.post("/predict", json=question).json()["predictions"] == answered


@pytest.mark.parametrize("path", ["/predict", "/embed"])
@pytest.mark.parametrize(
    "question", [{"nodes": [60, 61]}, {"new_nodes": [{"id": 1}, {"id": 2}]}, {"nodes": [60], "new_nodes": [{"id": 1}]}]
)
def test_if_no_node_has_an_answer_all_have_errors(client: httpx.Client, path: str, question: dict[str, Any]) -> None:
    response = post(client, question, path)
    assert response.status_code == 200
    assert all(set(entry) == {"node", "error", "code"} for entry in response.json()["predictions"])
    assert len(response.json()["predictions"]) == 2


def test_without_it_one_error_refuses_all(client: httpx.Client) -> None:
    question = {"nodes": [5], "new_nodes": [{"id": "a"} | GOOD, {"id": "b"} | BAD["short"][0]]}
    for request in (question, question | {"on_error": "refuse"}):
        assert refused(client.post("/predict", json=request), 422, "invalid").startswith("new node 'b'")


def test_a_neighbourhood_over_the_limit_is_an_error_of_its_node(store: Path) -> None:
    """But many that exceed it together are the error of the request."""
    with in_thread(store, max_recompute=20) as client:
        nodes = [{"id": "hub"} | GOOD | {"neighbors": [0]}, {"id": "fine"} | GOOD]
        hub, fine = post(client, {"new_nodes": nodes}).json()["predictions"]
        assert hub["code"] == "neighborhood_too_large"
        assert hub["error"].startswith("exact answers to 1 new node(s) read ")
        assert fine["exactness"] == "exact"
        many = [{"id": place} | GOOD for place in range(20)]
        message = refused(post(client, {"new_nodes": many}), 413, "neighborhood_too_large")
        assert "20 new node(s)" in message
        assert "send fewer new nodes per request" in message


@pytest.mark.parametrize("inline_cost", [0, 512])
def test_a_deep_model_finds_out_while_it_computes(tmp_path: Path, inline_cost: int) -> None:
    Store(tmp_path).publish("demo", small_contents(config={"layers": 5}), onnx=False, activate=True)
    hubs = [{"id": f"hub-{place}"} | GOOD | {"neighbors": [1]} for place in range(5)]  # linked to the hub
    lonely = {"id": "lonely"} | GOOD | {"neighbors": [59]}
    with in_thread(tmp_path, max_recompute=40, inline_cost=inline_cost) as client:
        predictions = post(client, {"new_nodes": [hubs[0], lonely, hubs[1]]}).json()["predictions"]
        assert [entry.get("code") for entry in predictions] == ["neighborhood_too_large", None, "neighborhood_too_large"]
        assert predictions[0]["error"].startswith("new node 'hub-0': an exact answer would read ")
        refused(post(client, {"new_nodes": [*hubs, lonely]}), 413, "neighborhood_too_large")


def test_an_answer_that_is_not_finite_is_an_error_of_its_node(tmp_path: Path) -> None:
    norms = {"input_layer_norm": False, "attention_layer_norm": False, "gnn_batch_norm": False}
    Store(tmp_path).publish("demo", small_contents(config=norms), onnx=False, activate=True)
    large = GOOD | {"features": [3e38, -3e38] * 2 + [3e38]}
    with in_thread(tmp_path) as client:
        question = {"new_nodes": [{"id": "large"} | large, {"id": "fine"} | GOOD, {"id": "larger"} | large]}
        first, fine, last = post(client, question).json()["predictions"]
        assert first == {"node": "large", "error": "the model has no finite answer for node 'large'", "code": "no_answer"}
        assert last["code"] == "no_answer"
        assert [fine] == client.post("/predict", json={"new_nodes": [{"id": "fine"} | GOOD]}).json()["predictions"]


def test_errors_are_not_cached(store: Path) -> None:
    with in_thread(store) as client:
        for _ in range(2):
            response = post(client, {"new_nodes": [{"id": "a"} | GOOD, {"id": "b"}]})
            assert "x-sgf-cache" not in response.headers


def test_limits_of_the_request_still_refuse_it(client: httpx.Client) -> None:
    refused(post(client, {"nodes": [1] * 1001}), 413, "batch_too_large")
    refused(post(client, {"nodes": []}), 422, "invalid")
    refused(
        client.post("/predict", content=b'{"on_error": "per_item"', headers={"content-type": "application/json"}),
        400,
        "not_json",
    )
