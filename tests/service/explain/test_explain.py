"""POST /explain: parts add up to the logits, effects equal full forwards without the link, on the graph as it is now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from model_store import Snapshot, Store
from service.engines.engine import NumpyEngine
from service.engines.served_model import ServedModel
from service.explain.explain_rows import describe
from service.explain.questions import ExplainQuestion
from sgformer_client import Client, new_node
from tests.model_store.samples import small_contents
from tests.service.live.rebuilt import Rebuilt, add_node, commit, edge
from tests.service.named import FAN, fan
from tests.service.serving import CONTENTS, in_thread, refused

TOLERANCE = 2e-5


def explained(client: httpx.Client, **question: Any) -> dict[str, Any]:
    response = client.post("/explain", json=question)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    np.testing.assert_allclose(sum(map(np.array, answer["branches"].values())), answer["logits"], atol=1e-12)
    return answer


def check_effects(answer: dict[str, Any], rebuilt: Rebuilt) -> None:
    """Against full forwards over the graph without each link."""
    node = answer["node"]
    logits = rebuilt.logits()[node]
    np.testing.assert_allclose(answer["logits"], logits, atol=TOLERANCE)
    for entry in answer["neighbors"]:
        without = rebuilt.copy().apply(edge("remove_edge", node, entry["node"])).logits()[node]
        np.testing.assert_allclose(entry["effect"], logits - without, atol=TOLERANCE)
        assert entry["label_without"] == without.argmax()
    if answer["counterfactual"]:
        links = [edge("remove_edge", node, other) for other in answer["counterfactual"]["without"]]
        assert rebuilt.copy().apply(*links).logits()[node].argmax() == answer["counterfactual"]["label"] != answer["label"]


@pytest.mark.parametrize("node", [0, 3, 59])
def test_a_known_node(client: httpx.Client, node: int) -> None:
    """A hub, a usual node, and one without neighbours."""
    answer, rebuilt = explained(client, node=node, top=100), Rebuilt(CONTENTS)
    check_effects(answer, rebuilt)
    links = {next(iter(link - {node})) for link in rebuilt.edges if node in link}
    assert {entry["node"] for entry in answer["neighbors"]} == links
    assert answer["degree"] == len(links)
    predicted = client.post("/predict", json={"nodes": [node]}).json()
    assert {name: answer[name] for name in ("model", "version", "snapshot")} == {
        name: predicted[name] for name in ("model", "version", "snapshot")
    }
    assert answer["label"] == predicted["predictions"][0]["label"]
    assert answer["class"] == predicted["predictions"][0]["class"]
    assert "sequence" not in answer


def test_a_new_node(client: httpx.Client, features: list[float]) -> None:
    node = {"id": 99, "features": features, "neighbors": [0, 3, 7, 3]}
    answer = explained(client, new_node=node)
    rebuilt = Rebuilt(CONTENTS).apply({"op": "add_node", **node})
    check_effects(answer, rebuilt)
    assert answer["degree"] == 3
    assert {entry["feature"] for entry in answer["features"]} == set(range(5))
    for entry in answer["features"]:
        changed = [*features[: entry["feature"]], 0.0, *features[entry["feature"] + 1 :]]
        without = rebuilt.copy().apply({"op": "set_features", "id": 99, "features": changed}).logits()[99]
        np.testing.assert_allclose(entry["effect"], np.array(answer["logits"]) - without, atol=TOLERANCE)
    sparse = {"indices": list(range(5)), "values": features}
    again = explained(client, new_node=node | {"features": sparse})
    np.testing.assert_allclose(again["logits"], answer["logits"], atol=TOLERANCE)
    assert {entry["feature"] for entry in again["features"]} == set(range(5))


def test_the_graph_as_it_is_now(live: httpx.Client) -> None:
    rebuilt = Rebuilt(CONTENTS)
    operations = [add_node(100, 4, 0, 1, 2), edge("add_edge", 100, 30), {"op": "remove_node", "id": 1}]
    rebuilt.apply(*operations)
    sequence = commit(live, *operations)
    for node in (100, 0, 30):
        answer = explained(live, node=node, top=100)
        assert answer["sequence"] == sequence
        check_effects(answer, rebuilt)
    assert explained(live, node=100)["features"]
    assert "removed" in refused(live.post("/explain", json={"node": 1}), 404, "unknown_node")


def test_only_the_strongest_are_reported(client: httpx.Client) -> None:
    every, top = explained(client, node=0, top=100), explained(client, node=0, top=2)
    assert every["neighbors"][:2] == top["neighbors"]
    assert every["features"][:2] == top["features"]
    changes = [abs(_margin(every, entry["effect"])) for entry in every["neighbors"]]
    assert changes == sorted(changes, reverse=True)
    assert top["fidelity"]["plus"] in (0, 1)
    assert every["fidelity"]["minus"] == 0  # all links are the explanation: nothing changes with them


def _margin(answer: dict[str, Any], effect: list[float]) -> float:
    def margin(logits: np.ndarray) -> float:
        return float(logits[answer["label"]] - np.delete(logits, answer["label"]).max())

    logits = np.array(answer["logits"])
    return margin(logits) - margin(logits - effect)


def test_features_by_name(named_client: httpx.Client) -> None:
    answer = explained(named_client, node="fan-9")
    assert {entry["feature"] for entry in answer["features"]} <= set(FAN)
    known = next(entry for entry in answer["features"] if entry["feature"] == "age")
    missing = {"op": "set_features", "id": "fan-9", "features": fan(9) | {"age": None}}
    question = {"nodes": ["fan-9"], "assuming": [missing]}
    without = named_client.post("/predict", json=question).json()["predictions"][0]["probabilities"]
    expected = np.exp(np.array(answer["logits"]) - known["effect"])
    np.testing.assert_allclose(expected / expected.sum(), without, atol=TOLERANCE)
    assert [entry["feature"] for entry in explained(named_client, node="fan-9", top=1)["features"]] == [
        answer["features"][0]["feature"]
    ]


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_other_tasks_name_their_answer_as_predict_does(tmp_path: Path, task: str) -> None:
    contents = small_contents(config={"task": task}, classes=None if task == "regression" else ("x", "y", "z"))
    Store(tmp_path).publish("other", contents, onnx=False, activate=True, raw_data=task == "multilabel")
    with Store(tmp_path).model("other").open() as snapshot:
        answer = describe(_served(snapshot), ExplainQuestion(node=0))
        logits = snapshot.known_logits(np.array([0]))[0]
    np.testing.assert_allclose(answer["logits"], logits, atol=TOLERANCE)
    if task == "regression":
        np.testing.assert_allclose(answer["value"], logits, atol=TOLERANCE)
        assert {"value_without", "node", "effect"} == set(answer["neighbors"][0])
        assert answer["fidelity"] is answer["counterfactual"] is answer["features"] is None
    else:
        assert answer["labels"] == np.flatnonzero(logits > 0).tolist()
        assert {"labels_without", "node", "effect"} == set(answer["neighbors"][0])
        assert 0 <= answer["fidelity"]["plus"] <= 1


def _served(snapshot: Snapshot) -> ServedModel:
    return ServedModel(1, snapshot, NumpyEngine(snapshot), {})


@pytest.mark.parametrize("backend", ["torch", "onnx"])
def test_every_engine_explains_alike(store: Path, client: httpx.Client, backend: str) -> None:
    with in_thread(store, backend=backend) as other:
        assert explained(other, node=3) == explained(client, node=3)
        assert other.post("/similar", json={"nodes": [3]}).json() == client.post("/similar", json={"nodes": [3]}).json()


def test_work_beyond_the_limit_is_refused(store: Path) -> None:
    with in_thread(store, max_explain=100) as client:
        message = refused(client.post("/explain", json={"node": 0}), 413, "neighborhood_too_large")
        assert "SGF_MAX_EXPLAIN" in message
        assert explained(client, node=59)["degree"] == 0


@pytest.mark.parametrize(
    ("question", "status", "code", "words"),
    [
        ({}, 422, "invalid", "neither node nor new_node"),
        ({"node": 0, "new_node": {"id": 1, "features": [0] * 5}}, 422, "invalid", "both"),
        ({"node": 0, "top": 0}, 422, "invalid", "top"),
        ({"node": 0, "tops": 1}, 422, "invalid", "tops"),
        ({"node": 1000}, 404, "unknown_node", "1000"),
        ({"new_node": {"id": "a", "features": [0] * 4}}, 422, "invalid", "4 features, expected 5"),
        ({"new_node": {"id": "a", "features": [0] * 5, "neighbors": [99]}}, 404, "unknown_node", "'a'"),
        ({"new_node": {"id": "a", "features": [3e38] * 5}}, 422, "no_answer", "'a'"),
        ({"new_node": {"id": "a", "features": [1e39] * 5}}, 422, "invalid", "'a'"),
    ],
)
def test_what_is_wrong_is_said(client: httpx.Client, question: Any, status: int, code: str, words: str) -> None:
    assert words in refused(client.post("/explain", json=question), status, code)


def test_the_client_has_a_method(client: httpx.Client, features: list[float]) -> None:
    with Client(str(client.base_url)) as own:
        answer = own.explain(3, top=2)
        assert len(answer.neighbors) == 2
        assert answer.class_name in ("x", "y", "z")
        assert own.explain(new_node("a", features, [1])).node == "a"
