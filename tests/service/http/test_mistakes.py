"""Mistakes in requests, and the whole message that each gets: what was found, where, what was expected, what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from model_store import Store
from tests.model_store.samples import small_contents
from tests.service.named import FAN
from tests.service.serving import in_thread, refused


def fans(features: Any, **options: Any) -> dict[str, Any]:
    return {"new_nodes": [{"id": "a", "features": features, "neighbors": ["fan-7"]}]} | options


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in FAN.items() if key != name}


INVALID = [
    (fans(FAN | {"dayz": 1}), "new node 'a': feature 'dayz' is not a feature of this model; did you mean 'days'?"),
    (
        fans(FAN | {"weather": 1}),
        "new node 'a': feature 'weather' is not a feature of this model; "
        "the first known names: days, partner, genre, joined, age",
    ),
    (fans(without("days")), "new node 'a': feature 'days' is missing, expected a number"),
    (fans({}), "new node 'a': feature 'days' is missing, expected a number"),
    (fans(without("genre")), "new node 'a': feature 'genre' is missing, expected one of jazz, rock"),
    (fans(FAN | {"days": None}), "new node 'a': feature 'days' is missing, expected a number"),
    (fans(FAN | {"days": "many"}), "new node 'a': feature 'days' is 'many', expected a number"),
    (fans(FAN | {"days": True}), "new node 'a': feature 'days' is True, expected a number"),
    (fans(FAN | {"partner": "yes"}), "new node 'a': feature 'partner' is 'yes', expected true or false"),
    (
        fans(FAN | {"genre": "rok"}),
        "new node 'a': feature 'genre' is 'rok', expected one of jazz, rock; did you mean 'rock'?",
    ),
    (fans(FAN | {"genre": 1}), "new node 'a': feature 'genre' is 1.0, expected one of jazz, rock"),
    (
        fans(FAN | {"joined": "31.1.2024"}),
        "new node 'a': feature 'joined' is '31.1.2024', expected a date such as 2024-01-31",
    ),
    (
        fans(FAN | {"days": [100]}),
        "new_nodes.0.features.days: Input should be a valid number or a valid boolean or a valid string",
    ),
    (fans({"x" * 257: 1}), f"new_nodes.0.features.{'x' * 179}: String should have at most 256 characters"),
    (fans([1.0] * 6), "new node 'a' has 6 features, expected 7; GET /features lists their names"),
    (fans([1e39] + [0.0] * 6), "new node 'a': features hold NaN, infinity or more than 3.4e38 (column 0)"),
    (fans({"indices": [1]}), "new_nodes.0.features.values: Field required"),
    (
        fans({"indices": [1], "values": [2], "days": 1}),
        "new_nodes.0.features.days: Extra inputs are not permitted",
    ),
    (
        fans({"indices": 1, "values": 2}),
        "new node 'a': feature 'indices' is not a feature of this model; "
        "the first known names: days, partner, genre, joined, age",
    ),
    (fans(FAN, probabilities="by_name"), "probabilities: Input should be a valid boolean or 'by_class'"),
    (fans(FAN, probabilities=1), "probabilities: Input should be a valid boolean or 'by_class'"),
    (fans(FAN, on_error="ignore"), "on_error: Input should be 'refuse' or 'per_item'"),
    (
        fans(FAN, on_error="per_item", joint=True),
        "joint new nodes are answered together or not at all, expected on_error: refuse (the default)",
    ),
    ({"nodes": [1.5], "on_error": "per_item"}, "nodes.0: Input should be a valid integer or a valid string"),
    (
        {"new_nodes": [{"id": None, "features": []}], "on_error": "per_item"},
        "new_nodes.0.id: Input should be a valid integer or a valid string",
    ),
    ({"new_nodes": {}, "on_error": "per_item"}, "new_nodes: Input should be a valid array"),
    (
        {"new_nodes": [{"id": 1}, {"id": 1}], "on_error": "per_item"},
        "two new nodes have the id 1, expected different ones",
    ),
]


@pytest.mark.parametrize(("question", "message"), INVALID)
def test_a_mistake_gets_a_complete_message(named_client: httpx.Client, question: Any, message: str) -> None:
    response = named_client.post("/predict", json=question)
    assert refused(response, 422, "invalid") == message
    assert len(message) < 410


def test_a_feature_at_fault_is_in_the_details(named_client: httpx.Client) -> None:
    response = named_client.post("/predict", json=fans(FAN | {"genre": "rok"}))
    assert response.json()["details"] == {"node": "a", "feature": "genre"}


def test_an_unknown_neighbour_names_the_new_node(named_client: httpx.Client) -> None:
    question = {"new_nodes": [{"id": "a", "features": FAN}, {"id": "b", "features": FAN, "neighbors": ["fan-7", "fan-77"]}]}
    response = named_client.post("/predict", json=question)
    message = refused(response, 404, "unknown_node")
    assert message == "new node 'b' has an unknown neighbour: node 'fan-77' is not in the graph"
    assert response.json()["details"] == {"node": "fan-77", "new_node": "b"}


def test_names_for_a_model_without_names(client: httpx.Client) -> None:
    question = {"new_nodes": [{"id": "a", "features": FAN}]}
    assert refused(client.post("/predict", json=question), 422, "invalid") == (
        "new node 'a' has features by name, and version 1 was trained without names; "
        'expected a list of 5 numbers, or {"indices": [...], "values": [...]}'
    )


def test_an_array_has_no_place_for_errors(named_client: httpx.Client) -> None:
    headers = {"accept": "application/x-npy"}
    response = named_client.post("/embed", json=fans(FAN, on_error="per_item"), headers=headers)
    assert refused(response, 422, "invalid") == (
        "an npy array has one row per node and cannot hold errors, expected on_error: refuse, or Accept: */*"
    )


def test_probabilities_by_class_need_classes_with_different_names(tmp_path: Path) -> None:
    for model, changes in {"values": {"config": {"task": "regression"}}, "same": {"classes": ("x", "y", "x")}}.items():
        Store(tmp_path).publish(model, small_contents(**changes), onnx=False, activate=True)
    question = {"nodes": [1], "probabilities": "by_class"}
    with in_thread(tmp_path, model="values") as client:
        message = refused(client.post("/predict", json=question), 422, "invalid")
        assert message == "probabilities: by_class needs classes, and this model predicts values"
    with in_thread(tmp_path, model="same") as client:
        message = refused(client.post("/predict", json=question), 422, "invalid")
        assert message == "two classes have the same name, expected probabilities: true, a list in their order"


@pytest.mark.parametrize(
    ("path", "status", "code", "message"),
    [
        ("/nodes/fan-77", 404, "unknown_node", "node 'fan-77' is not in the graph"),
        ("/nodes/fan-7?limit=-1", 422, "invalid", "query.limit: Input should be greater than or equal to 0"),
        ("/nodes/fan-7?limit=10001", 422, "invalid", "query.limit: Input should be less than or equal to 10000"),
    ],
)
def test_mistakes_in_paths(named_client: httpx.Client, path: str, status: int, code: str, message: str) -> None:
    assert refused(named_client.get(path), status, code) == message


def test_error_messages_are_bounded(named_client: httpx.Client) -> None:
    node = {"id": "a", "features": FAN | {"genre": "x" * 100_000}}
    response = named_client.post("/predict", json={"new_nodes": [node, node | {"id": "b"}], "on_error": "per_item"})
    assert all(len(entry["error"]) < 410 for entry in response.json()["predictions"])
