"""GET /map: the nodes of the snapshot in two dimensions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from model_store import Store
from service.explain.map_rows import draw_map
from sgformer_client import Client
from tests.model_store.samples import NODES, small_contents, small_labels
from tests.service.explain.test_explain import _served
from tests.service.live.rebuilt import add_node, commit
from tests.service.serving import refused


def test_a_new_embedding_can_be_put_on_the_map(client: httpx.Client) -> None:
    answer = client.get("/map").json()
    assert (answer["method"], answer["nodes"], answer["shown"]) == ("pca", 60, 60)
    assert answer["ids"] == list(range(60))
    predicted = client.post("/predict", json={"nodes": answer["ids"], "embeddings": True}).json()["predictions"]
    assert answer["predictions"] == [entry["label"] for entry in predicted]
    embeddings = np.array([entry["embedding"] for entry in predicted])
    places = (embeddings - answer["mean"]) @ np.array(answer["components"]).T
    extent = np.abs(places).max()
    np.testing.assert_allclose(np.stack([answer["x"], answer["y"]], axis=1), places, atol=2e-4 * extent)
    assert answer["classes"] == ["x", "y", "z"]
    assert answer["labels"] == [None] * 60
    assert 0 < answer["explained"][1] <= answer["explained"][0] < 1


def test_a_large_graph_is_sampled_evenly(client: httpx.Client) -> None:
    every, some = client.get("/map").json(), client.get("/map?limit=7").json()
    assert some["ids"] == [0, 8, 17, 25, 34, 42, 51]
    assert (some["nodes"], some["shown"]) == (60, 7)
    for name in ("x", "y", "predictions"):
        np.testing.assert_allclose(some[name], np.array(every[name])[some["ids"]], atol=1e-3)


def test_it_is_the_map_of_the_snapshot_whatever_has_changed(live: httpx.Client) -> None:
    before = live.get("/map").content
    commit(live, add_node(100, 4, 0, 1))
    assert live.get("/map").content == before


@pytest.mark.parametrize("task", ["multiclass", "multilabel", "regression"])
def test_labels_and_predictions_by_task(tmp_path: Path, task: str) -> None:
    labels: Any = small_labels()["labels"]
    if task == "multilabel":
        labels = np.zeros((NODES, 3), dtype=np.float32)
    if task == "regression":
        labels = np.where(labels < 0, np.nan, labels)[:, None].repeat(3, axis=1).astype(np.float32)
    contents = small_contents(config={"task": task}, labels=labels)
    Store(tmp_path).publish("other", contents, onnx=False, activate=True)
    with Store(tmp_path).model("other").open() as snapshot:
        answer = draw_map(_served(snapshot), 1000)
        logits = snapshot.known_logits(np.arange(NODES))
    expected = [number % 3 for number in range(NODES - 1)]
    assert answer["labels"] == ([None] * NODES if task == "multilabel" else [*expected, None])
    predicted = logits[:, 0] if task == "regression" else logits.argmax(axis=1)
    np.testing.assert_array_equal(answer["predictions"], predicted)
    assert answer["task"] == task
    assert answer["classes"] == ([] if task == "regression" else ["0", "1", "2"])


@pytest.mark.parametrize("limit", ["0", "-1", "x", "", "200001", "1.5"])
def test_a_wrong_limit_is_refused(client: httpx.Client, limit: str) -> None:
    assert "limit" in refused(client.get("/map", params={"limit": limit}), 422, "invalid")


def test_head_and_other_methods(client: httpx.Client) -> None:
    head = client.head("/map")
    assert (head.status_code, head.content) == (200, b"")
    assert client.post("/map", json={}).status_code == 405


def test_the_client_has_a_method(client: httpx.Client) -> None:
    with Client(str(client.base_url)) as own:
        assert own.map(limit=5).shown == 5
