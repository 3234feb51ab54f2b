"""Features and probabilities by name: the same numbers as without names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from model_store import FeatureColumn, FeatureSchema, Store
from sgformer import Graph
from tests.model_store.samples import FEATURES, small_contents, small_graph
from tests.service.named import FAN, SCHEMA, fan
from tests.service.serving import in_thread


def ask(client: httpx.Client, *features: Any, **options: Any) -> list[dict[str, Any]]:
    nodes = [{"id": place, "features": row, "neighbors": ["fan-7", "a/b"]} for place, row in enumerate(features)]
    response = client.post("/predict", json={"new_nodes": nodes} | options)
    assert response.status_code == 200, response.text
    predictions: list[dict[str, Any]] = response.json()["predictions"]
    return predictions


@pytest.mark.parametrize("features", [FAN, fan(1), fan(8), {name: FAN[name] for name in FAN if name != "age"}])
def test_an_object_by_name_gets_the_bits_of_its_list(named_client: httpx.Client, features: dict[str, Any]) -> None:
    named, listed = ask(named_client, features, SCHEMA.encode(features).tolist(), embeddings=True)
    assert named | {"node": 1} == listed


def test_names_lists_and_sparse_features_in_one_request(named_client: httpx.Client) -> None:
    sparse = {"indices": [0, 3], "values": [100.0, 1.0]}
    mixed = ask(named_client, FAN, sparse, SCHEMA.encode(FAN).tolist(), sparse)
    assert mixed[0] == ask(named_client, FAN)[0]
    assert mixed[1] | {"node": 3} == mixed[3]
    assert mixed[0] | {"node": 2} == mixed[2]


def test_features_called_indices_and_values_are_no_sparse_features(tmp_path: Path) -> None:
    """Values by name are never lists, and those of sparse features always are."""
    names = ["indices", "values", *"abc"]
    schema = FeatureSchema(tuple(FeatureColumn(name, "number", fill=0.0) for name in names))
    Store(tmp_path).publish("demo", small_contents(features=schema), onnx=False, activate=True)
    forms = [{"indices": 3, "values": 2}, {"indices": [0, 1], "values": [3.0, 2.0]}, [3, 2, 0, 0, 0]]
    with in_thread(tmp_path) as client:
        nodes = [{"id": place, "features": features} for place, features in enumerate(forms)]
        predictions = client.post("/predict", json={"new_nodes": nodes}).json()["predictions"]
    assert predictions[0]["probabilities"] == predictions[2]["probabilities"]
    np.testing.assert_allclose(predictions[1]["probabilities"], predictions[2]["probabilities"], atol=1e-6)


def test_probabilities_by_class(named_client: httpx.Client) -> None:
    (listed,), (by_class,) = ask(named_client, FAN, top_k=2), ask(named_client, FAN, probabilities="by_class", top_k=2)
    assert by_class["probabilities"] == dict(zip(("loud", "50%", 'so "so"'), listed["probabilities"], strict=True))
    assert list(by_class["probabilities"]) == ["loud", "50%", 'so "so"'], "in the order of the labels"
    assert by_class | {"probabilities": None} == listed | {"probabilities": None}


@pytest.mark.parametrize("names", [("x", "y", "z"), None])
def test_probabilities_of_labels_by_name(tmp_path: Path, names: tuple[str, ...] | None) -> None:
    """Labels without names are called by their numbers, as in `top_k`."""
    contents = small_contents(config={"task": "multilabel"}, classes=names)
    Store(tmp_path).publish("demo", contents, onnx=False, activate=True)
    with in_thread(tmp_path) as client:
        listed, by_class = (
            client.post("/predict", json={"nodes": [3, 4], "probabilities": form}).json()["predictions"]
            for form in (True, "by_class")
        )
    for plain, named in zip(listed, by_class, strict=True):
        assert named["probabilities"] == dict(zip(names or "012", plain["probabilities"], strict=True))


def test_the_cache_distinguishes_the_forms(named_store: Path) -> None:
    node = {"id": "a", "features": FAN, "neighbors": ["fan-7"]}
    changed = [
        {"new_nodes": [node], "probabilities": "by_class"},
        {"new_nodes": [node]},
        {"new_nodes": [node | {"features": FAN | {"partner": False}}]},
        {"new_nodes": [node | {"features": FAN | {"partner": 1}}]},
        {"new_nodes": [node | {"features": FAN | {"age": None}}]},
    ]
    with in_thread(named_store) as client:
        first = [client.post("/predict", json=question) for question in changed]
        again = [client.post("/predict", json=question) for question in reversed(changed)]
        reordered = {"new_nodes": [node | {"features": dict(reversed(FAN.items()))}]}
        assert client.post("/predict", json=reordered).headers["x-sgf-cache"] == "hit"
    assert [response.headers["x-sgf-cache"] for response in first] == ["miss"] * 5
    assert [response.headers["x-sgf-cache"] for response in again] == ["hit"] * 5
    assert [response.content for response in first] == [response.content for response in reversed(again)]


def test_an_answer_says_how_long_it_waited_and_was_computed(client: httpx.Client, features: list[float]) -> None:
    question = {"new_nodes": [{"id": "timed", "features": features, "neighbors": [1]}]}
    headers = client.post("/predict", json=question).headers
    parts = dict(part.split(";dur=") for part in headers["server-timing"].split(", "))
    assert {"queue", "compute"} == set(parts)
    assert all(0 < float(milliseconds) < 10_000 for milliseconds in parts.values())
    repeated = client.post("/predict", json=question).headers
    assert ("server-timing" in repeated, repeated["x-sgf-cache"]) == (False, "hit")
    known = client.post("/predict", json={"nodes": [1]}).headers
    assert not {"server-timing", "x-sgf-cache"} & set(known)
    npy = client.post("/embed", json=question, headers={"accept": "application/x-npy"}).headers
    assert (npy["x-sgf-cache"], npy["x-sgf-model"]) == ("miss", "demo")


def test_names_reach_the_compute_process(named_store: Path, named_client: httpx.Client) -> None:
    with in_thread(named_store, inline_cost=0) as client:
        assert ask(client, FAN, fan(3)) == ask(named_client, FAN, fan(3))


def test_a_wide_schema_fills_what_a_request_leaves_out(tmp_path: Path) -> None:
    columns = tuple(FeatureColumn(f"word-{place}", "number", fill=0.0) for place in range(3000))
    graph = small_graph()
    wide = np.zeros((graph.num_nodes, len(columns)), dtype=np.float32)
    wide[:, :FEATURES] = graph.features
    contents = small_contents(
        graph=Graph.build(wide, graph.adjacency.edge_index()),
        config={"in_features": len(columns)},
        features=FeatureSchema(columns),
    )
    Store(tmp_path).publish("demo", contents, onnx=False, activate=True)
    nodes = [{"id": "a", "features": {"word-7": 1}}, {"id": "b", "features": {"word-7": 1, "wort-8": 1}}]
    with in_thread(tmp_path) as client:
        first, second = client.post("/predict", json={"new_nodes": nodes, "on_error": "per_item"}).json()["predictions"]
        assert (first["exactness"], second["code"]) == ("exact", "invalid")
        assert b"word-8" not in client.get("/openapi.json").content, "the document names at most a few features"
