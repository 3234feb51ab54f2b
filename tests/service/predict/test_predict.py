"""Answers to requests over real HTTP."""

from __future__ import annotations

import gzip
import io
import threading
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from model_store import NodeIds, Snapshot, Store
from sgformer import Graph, full_logits, probabilities
from tests.model_store.samples import CLASSES, NODES, small_contents, small_graph
from tests.service.serving import CONTENTS, in_thread, refused


def full_forward(graph: Graph, rows: list[list[float]], edges: list[tuple[int, int]]) -> np.ndarray:
    """The expected logits of the added rows, by a forward over the whole graph."""
    features = np.concatenate([np.asarray(graph.features), np.array(rows, dtype=np.float32)])
    known = graph.adjacency.edge_index()
    added = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    augmented = Graph.build(features, np.concatenate([known, added], axis=1))
    return full_logits(CONTENTS.config, CONTENTS.weights, augmented)[graph.num_nodes :]


def test_known_nodes_get_the_answers_of_the_full_forward(client: httpx.Client, snapshot: Snapshot) -> None:
    answer = client.post("/predict", json={"nodes": [0, 5, NODES - 1], "embeddings": True}).json()
    expected = full_logits(CONTENTS.config, CONTENTS.weights, small_graph())[[0, 5, NODES - 1]]
    shares = probabilities(expected, "multiclass")
    assert (answer["model"], answer["version"], answer["snapshot"]) == ("demo", 1, snapshot.id)
    for prediction, row, node in zip(answer["predictions"], shares, [0, 5, NODES - 1], strict=True):
        label = int(row.argmax())
        assert (prediction["node"], prediction["label"], prediction["class"]) == (node, label, "xyz"[label])
        np.testing.assert_allclose(prediction["probabilities"], row, atol=1e-5)
        assert (len(prediction["embedding"]), prediction["exactness"]) == (8, "exact")


@pytest.mark.parametrize("backend", ["numpy", "onnx", "torch"])
def test_new_nodes_get_the_answers_of_a_full_forward_with_them_added(
    store: Path, backend: Any, features: list[float]
) -> None:
    """An ordinary node, an isolated node, a neighbour of the hub; then two joint nodes with a link."""
    graph, other = small_graph(), [-value for value in features]
    with in_thread(store, backend=backend) as client:
        for rows, neighbors, links in (
            ([features], [[3, 4, 7]], []),
            ([features], [[]], []),
            ([features], [[0, 9]], []),
            ([features, other], [[0, 3], [5]], [["a", "b"]]),
        ):
            nodes = [{"id": "ab"[i], "features": row, "neighbors": neighbors[i]} for i, row in enumerate(rows)]
            question = {"new_nodes": nodes, "edges": links, "joint": bool(links)}
            answer = client.post("/predict", json=question).json()
            edges = [(NODES + i, neighbor) for i, ids in enumerate(neighbors) for neighbor in ids]
            expected = full_forward(graph, rows, edges + [(NODES, NODES + 1)] * len(links))
            for prediction, row in zip(answer["predictions"], probabilities(expected, "multiclass"), strict=True):
                np.testing.assert_allclose(prediction["probabilities"], row, atol=1e-5)
                assert prediction["exactness"] == "exact"


def test_a_frozen_answer_says_so_and_differs(client: httpx.Client, features: list[float]) -> None:
    question = {"new_nodes": [{"id": 7, "features": features, "neighbors": [0, 3]}]}
    exact, frozen = (
        client.post("/predict", json=question | {"mode": mode}).json()["predictions"][0] for mode in ("exact", "frozen")
    )
    assert (exact["exactness"], frozen["exactness"]) == ("exact", "frozen")
    assert np.abs(np.subtract(exact["probabilities"], frozen["probabilities"])).max() > 1e-4
    assert exact["node"] == 7


def test_sparse_and_dense_features_give_the_same_answer(client: httpx.Client) -> None:
    dense = [0.0, 1.5, 0.0, -2.0, 0.0]
    sparse = {"indices": [3, 1], "values": [-2.0, 1.5]}
    both = [{"id": "d", "features": dense, "neighbors": [1]}, {"id": "s", "features": sparse, "neighbors": [1]}]
    first, second = client.post("/predict", json={"new_nodes": both}).json()["predictions"]
    np.testing.assert_allclose(first["probabilities"], second["probabilities"], atol=1e-6)


def test_answers_have_the_order_of_the_request(client: httpx.Client, features: list[float]) -> None:
    new = [{"id": name, "features": features, "neighbors": [1]} for name in ("z", "a")]
    answer = client.post("/predict", json={"nodes": [9, 2, 9], "new_nodes": new, "probabilities": False, "top_k": 2}).json()
    assert [prediction["node"] for prediction in answer["predictions"]] == [9, 2, 9, "z", "a"]
    for prediction in answer["predictions"]:
        assert "probabilities" not in prediction
        first, second = prediction["top_k"]
        assert (first["label"], first["probability"] >= second["probability"]) == (prediction["label"], True)


def test_embeddings_as_json_and_as_an_array(client: httpx.Client, features: list[float]) -> None:
    question = {"nodes": [4], "new_nodes": [{"id": "n", "features": features, "neighbors": [2]}]}
    answer = client.post("/embed", json=question).json()
    npy = client.post("/embed", json=question, headers={"accept": "application/x-npy"})
    array = np.load(io.BytesIO(npy.content))
    assert array.dtype == np.float32
    for name in ("model", "version", "snapshot"):
        assert npy.headers[f"x-sgf-{name}"] == str(answer[name])
    np.testing.assert_allclose([prediction["embedding"] for prediction in answer["predictions"]], array, rtol=1e-6)
    assert {"label", "probabilities"} & set(answer["predictions"][0]) == set()


def test_requests_and_responses_can_be_compressed(client: httpx.Client) -> None:
    body = gzip.compress(b'{"nodes": ' + str(list(range(50))).encode() + b"}")
    headers = {"content-encoding": "gzip", "content-type": "application/json", "accept-encoding": "gzip"}
    response = client.post("/predict", content=body, headers=headers)
    assert response.headers["content-encoding"] == "gzip"
    assert len(response.json()["predictions"]) == 50
    for page in ("/openapi.json", "/metrics"):
        assert client.get(page).headers["content-encoding"] == "gzip"
        assert "content-encoding" not in client.get(page, headers={"accept-encoding": "identity"}).headers
    headers["accept-encoding"] = "gzip;q=0"
    assert "content-encoding" not in client.post("/predict", content=body, headers=headers).headers


def test_large_answers_are_compressed_in_a_thread(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    compress = gzip.compress

    def note_thread(*arguments: Any) -> bytes:
        threads.append(threading.current_thread().name)
        return compress(*arguments)

    monkeypatch.setattr("service.http.reply.gzip.compress", note_thread)
    for count in (50, 1000):
        response = client.post("/embed", json={"nodes": [1] * count})
        assert len(response.json()["predictions"]) == count
    assert threads[0] != threads[1]


def test_a_valid_request_id_is_returned(client: httpx.Client) -> None:
    def returned_id(request_id: str) -> str:
        return client.post("/predict", json={"nodes": [1]}, headers={"x-request-id": request_id}).headers["x-request-id"]

    assert returned_id("mine-1") == "mine-1"
    assert len(returned_id("a b<script>")) == 16


@pytest.mark.parametrize("backend", ["numpy", "torch", "onnx"])
@pytest.mark.parametrize(("task", "outputs"), [("multilabel", 3), ("regression", 2), ("regression", 1)])
def test_new_nodes_of_other_tasks(tmp_path: Path, task: Any, outputs: int, backend: str, features: list[float]) -> None:
    contents = small_contents(config={"task": task, "out_features": outputs})
    Store(tmp_path).publish("demo", contents, onnx=backend == "onnx", activate=True)
    graph = small_graph()
    edges = np.concatenate([graph.adjacency.edge_index(), [[NODES, NODES], [3, 7]]], axis=1)
    larger = Graph.build(np.concatenate([graph.features, [features]]).astype(np.float32), edges)
    logits = full_logits(contents.config, contents.weights, larger)[NODES]
    with in_thread(tmp_path, backend=backend) as client:
        question = {"new_nodes": [{"id": "a", "features": features, "neighbors": [3, 7]}]}
        prediction = client.post("/predict", json=question).json()["predictions"][0]
    if task == "multilabel":
        np.testing.assert_allclose(prediction["probabilities"], 1 / (1 + np.exp(-logits)), atol=1e-5)
        assert prediction["labels"] == np.flatnonzero(logits > 0).tolist()
    else:
        np.testing.assert_allclose(prediction["value"], logits if outputs > 1 else logits[0], atol=1e-5)
        assert isinstance(prediction["value"], list if outputs > 1 else float)


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_known_nodes_of_other_tasks(tmp_path: Path, task: Any) -> None:
    contents = small_contents(config={"task": task})
    Store(tmp_path).publish("demo", contents, onnx=False, activate=True)
    logits = full_logits(contents.config, contents.weights, small_graph())[[3]]
    with in_thread(tmp_path) as client:
        prediction = client.post("/predict", json={"nodes": [3]}).json()["predictions"][0]
        likely = client.post("/predict", json={"nodes": [3], "top_k": 2, "probabilities": False})
        for example in client.get("/openapi.json").json()["paths"]["/predict"]["post"]["requestBody"]["content"].values():
            for request in example["examples"].values():
                assert client.post("/predict", json=request["value"]).status_code == 200
    if task == "regression":
        np.testing.assert_allclose(prediction["value"], logits[0], atol=1e-5)
        assert refused(likely, 422, "invalid") == "top_k selects classes, and this model predicts values"
    else:
        best = np.argsort(-logits[0])[:2].tolist()
        assert [entry["label"] for entry in likely.json()["predictions"][0]["top_k"]] == best
        assert prediction["labels"] == np.flatnonzero(logits[0] > 0).tolist()
        np.testing.assert_allclose(prediction["probabilities"], 1 / (1 + np.exp(-logits[0])), atol=1e-5)
        assert len(prediction["probabilities"]) == CLASSES


def test_requests_use_the_ids_of_the_snapshot(tmp_path: Path, features: list[float]) -> None:
    names = [f"pkg-{row}" for row in range(NODES)]
    Store(tmp_path).publish("demo", small_contents(node_ids=NodeIds.build(names)), onnx=False, activate=True)
    with in_thread(tmp_path) as client:
        new = {"id": "mine", "features": features, "neighbors": ["pkg-3", "pkg-0"]}
        answer = client.post("/predict", json={"nodes": ["pkg-5"], "new_nodes": [new]}).json()
        assert [prediction["node"] for prediction in answer["predictions"]] == ["pkg-5", "mine"]
        message = refused(client.post("/predict", json={"nodes": [5]}), 404, "unknown_node")
        assert message == "node 5 is not in the graph, whose ids are strings"
        refused(client.post("/predict", json={"new_nodes": [new | {"neighbors": ["pkg-99"]}]}), 404, "unknown_node")


def test_answers_from_half_precision_states_say_that_they_are_rounded(tmp_path: Path) -> None:
    """Stored logits of known nodes are exact; other answers are computed from rounded states."""
    Store(tmp_path).publish("demo", CONTENTS, states="float16", activate=True)
    node = {"id": "a", "features": [1, 2, 3, 4, 5], "neighbors": [1]}
    with in_thread(tmp_path) as client, Store(tmp_path).model("demo").open() as opened:
        answer = client.post("/predict", json={"nodes": [1], "new_nodes": [node]}).json()
        assert [prediction["exactness"] for prediction in answer["predictions"]] == ["exact", "rounded"]
        assert answer["rounding_error"] == opened.rounding_error
        assert answer["rounding_error"] > 0
        answer = client.post("/embed", json={"nodes": [1], "new_nodes": [node], "mode": "frozen"}).json()
        assert [prediction["exactness"] for prediction in answer["predictions"]] == ["rounded", "frozen"]
        npy = client.post("/embed", json={"nodes": [1]}, headers={"accept": "application/x-npy"})
        assert float(npy.headers["x-sgf-rounding-error"]) == opened.rounding_error


def test_answers_from_full_precision_have_no_rounding_error(client: httpx.Client) -> None:
    assert "rounding_error" not in client.post("/predict", json={"nodes": [1]}).json()
