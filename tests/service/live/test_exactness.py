"""Answers after changes equal a full forward over the graph rebuilt from scratch: for all nodes, on every path."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from model_store import Store
from service.engines import served_model
from service.live import replica
from service.predict import batching, rows
from service.rollout import rollout
from tests.model_store.samples import small_contents
from tests.service.live.rebuilt import (
    KEY,
    Rebuilt,
    add_node,
    commit,
    edge,
    features,
    predict,
    random_operation,
)
from tests.service.serving import CONTENTS, in_thread, refused, until

TOLERANCE = 1e-5


@pytest.mark.parametrize(
    "settings", [{}, {"inline_cost": 0}, {"backend": "torch"}, {"backend": "onnx"}], ids=["loop", "process", "torch", "onnx"]
)
def test_every_answer_equals_a_full_forward_after_every_commit(own_store: Path, settings: dict) -> None:
    rng, rebuilt = np.random.default_rng(5), Rebuilt(CONTENTS)
    with in_thread(own_store, write_keys=(KEY,), **settings) as client:
        for sequence in range(1, 7):
            operations = []
            for _ in range(rng.integers(1, 5)):
                operations.append(random_operation(rng, rebuilt))
                rebuilt.apply(operations[-1])
            assert commit(client, *operations) == sequence
            compare_known(client, rebuilt)
            compare_new(client, rebuilt, sequence)
            compare_assumed(client, rebuilt, random_operation(rng, rebuilt))
        state = client.get("/graph").json()
    assert (state["nodes"], state["edges"], state["sequence"]) == (len(rebuilt.features), len(rebuilt.edges), 6)


def compare_known(client: httpx.Client, rebuilt: Rebuilt) -> None:
    expected = rebuilt.probabilities()
    answers = predict(client, nodes=list(expected))
    np.testing.assert_allclose(list(answers.values()), list(expected.values()), atol=TOLERANCE)


def compare_new(client: httpx.Client, rebuilt: Rebuilt, seed: int) -> None:
    """One new node alone, and two joint ones with a link, together with a known node."""
    first, second, third = list(rebuilt.features)[:3]
    left = {"id": "a", "features": features(seed), "neighbors": [first, second]}
    right = {"id": "b", "features": features(seed + 1), "neighbors": [third]}
    alone = rebuilt.copy().apply({"op": "add_node", **left}).probabilities()
    np.testing.assert_allclose(predict(client, new_nodes=[left])["a"], alone["a"], atol=TOLERANCE)
    joint = rebuilt.copy().apply({"op": "add_node", **left}, {"op": "add_node", **right}, edge("add_edge", "a", "b"))
    answers = predict(client, nodes=[first], new_nodes=[left, right], joint=True, edges=[["a", "b"]])
    expected = joint.probabilities()
    np.testing.assert_allclose([answers["a"], answers["b"]], [expected["a"], expected["b"]], atol=TOLERANCE)
    np.testing.assert_allclose(answers[first], rebuilt.probabilities()[first], atol=TOLERANCE)


def compare_assumed(client: httpx.Client, rebuilt: Rebuilt, operation: dict) -> None:
    operations = [add_node(999, 7, next(iter(rebuilt.features))), operation]
    assumed = rebuilt.copy().apply(*operations)
    expected = assumed.probabilities()
    nodes = list(expected)[-5:]
    new = {"id": "n", "features": features(3), "neighbors": [999]}
    response = client.post("/predict", json={"nodes": nodes, "new_nodes": [new], "assuming": operations})
    assert response.json()["assumed"] == 2
    answers = {entry["node"]: entry["probabilities"] for entry in response.json()["predictions"]}
    np.testing.assert_allclose([answers[node] for node in nodes], [expected[node] for node in nodes], atol=TOLERANCE)
    with_new = assumed.apply({"op": "add_node", **new}).probabilities()
    np.testing.assert_allclose(answers["n"], with_new["n"], atol=TOLERANCE)
    refused(client.post("/predict", json={"nodes": [999]}), 404, "unknown_node")


def test_a_restarted_service_gives_the_same_answers(own_store: Path) -> None:
    rebuilt = Rebuilt(CONTENTS)
    for start in range(3):
        with in_thread(own_store, write_keys=(KEY,)) as client:
            compare_known(client, rebuilt)
            operation = add_node(100 + start, start, 0, 1)
            assert commit(client, operation) == start + 1
            compare_known(client, rebuilt.apply(operation))


@pytest.mark.parametrize("turns", [1, 10_000])
def test_stale_states_are_computed_in_steps_while_other_requests_pass(
    own_store: Path, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_model, "REFRESHED_ENTRIES", 4)
    monkeypatch.setattr(batching, "MAX_TURNS", turns)
    monkeypatch.setattr(rollout, "WARM_UP_ENTRIES", 0)
    left = []  # stale states at the computation of a batch

    def compute(model: Any, questions: Any) -> Any:
        if model.is_changed:
            left.append(len(model.live.graph._layers[-1].stale(questions[0].states_read(model, questions))))
        return rows.compute(model, questions)

    monkeypatch.setattr(batching, "compute", compute)
    operations = [add_node(100 + number, number, 0, number, 59 - number) for number in range(20)]
    with in_thread(own_store, write_keys=(KEY,)) as client:
        for operation in operations:
            commit(client, operation)
    expected = Rebuilt(CONTENTS).apply(*operations).probabilities()
    with in_thread(own_store, write_keys=(KEY,)) as client, ThreadPoolExecutor(8) as pool:  # every state is stale
        for node, probabilities in zip(
            expected, pool.map(lambda node: predict(client, nodes=[node])[node], expected), strict=True
        ):
            np.testing.assert_allclose(probabilities, expected[node], atol=TOLERANCE)
    assert any(left) is (turns == 1)


def test_a_worker_that_applies_many_changes_says_how_far_it_is(own_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with in_thread(own_store, write_keys=(KEY,)) as client:
        for number in range(3):
            commit(client, add_node(100 + number, number, 0))
        expected = predict(client, nodes=[0, 100, 102])
    monkeypatch.setattr(rollout, "REPLAY_SECONDS", 0.0)
    monkeypatch.setattr(replica, "SLICE_RECORDS", 1)
    read, may_go_on = replica._read, threading.Event()

    def wait_after_the_first(model: Any, log: Any) -> Any:
        assert model.sequence == 0 or may_go_on.wait(60)
        return read(model, log)

    monkeypatch.setattr(replica, "_read", wait_after_the_first)
    with in_thread(own_store, write_keys=(KEY,)) as client:
        response = client.get("/health/ready")
        assert "version 1 is being loaded: it has applied change 1 of 3" in refused(response, 503, "not_ready")
        assert response.json()["details"] == {"sequence": 1, "log_sequence": 3}
        refused(client.post("/predict", json={"nodes": [0]}), 503, "not_ready")
        may_go_on.set()
        until(lambda: client.get("/health/ready").status_code == 200)
        assert predict(client, nodes=[0, 100, 102]) == expected


def test_half_precision_states_are_rounded_and_say_so(tmp_path: Path) -> None:
    contents = small_contents(config={"layers": 2, "hidden": 8})
    Store(tmp_path).publish("demo", contents, onnx=False, activate=True, states="float16")
    with in_thread(tmp_path, write_keys=(KEY,)) as client:
        assert client.post("/predict", json={"nodes": [1]}).json()["predictions"][0]["exactness"] == "exact"
        operation = add_node(100, 1, 1)
        commit(client, operation)
        response = client.post("/predict", json={"nodes": [1]}).json()
        assert response["predictions"][0]["exactness"] == "rounded"
        expected = Rebuilt(contents).apply(operation).probabilities()[1]
        np.testing.assert_allclose(response["predictions"][0]["probabilities"], expected, atol=1e-2)


def test_cached_answers_belong_to_their_sequence(live: httpx.Client) -> None:
    question = {"new_nodes": [{"id": "a", "features": features(1), "neighbors": [0]}]}
    kinds, answers = [], []
    for operation in (None, add_node(100, 2, 0), edge("remove_edge", 100, 0), edge("add_edge", 100, 0)):
        if operation:
            commit(live, operation)
        for _ in range(2):
            response = live.post("/predict", json=question)
            kinds.append(response.headers["x-sgf-cache"])
            answers.append(response.json())
    assert kinds == ["miss", "hit"] * 4
    assert [answer.get("sequence") for answer in answers] == [None, None, 1, 1, 2, 2, 3, 3]
    assert answers[2]["predictions"] != answers[0]["predictions"]
    np.testing.assert_allclose(*(answer["predictions"][0]["probabilities"] for answer in answers[2::4]), atol=TOLERANCE)


def test_an_array_of_embeddings_names_the_sequence(live: httpx.Client) -> None:
    accept = {"accept": "application/x-npy"}
    assert "x-sgf-sequence" not in live.post("/embed", json={"nodes": [0]}, headers=accept).headers
    commit(live, add_node(100, 1, 0))
    assert live.post("/embed", json={"nodes": [0, 100]}, headers=accept).headers["x-sgf-sequence"] == "1"


def test_a_store_that_was_copied_has_its_changes(own_store: Path, tmp_path: Path) -> None:
    with in_thread(own_store, write_keys=(KEY,)) as client:
        commit(client, add_node(100, 1, 0))
        expected = predict(client, nodes=[0, 100])
    with in_thread(Path(shutil.copytree(own_store, tmp_path / "copy"))) as client:
        assert predict(client, nodes=[0, 100]) == expected
        refused(client.post("/graph", json={"operations": [add_node(101)]}), 404, "not_found")
