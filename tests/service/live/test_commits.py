"""Requests that change the graph: once, as a whole, in order, or not at all."""

from __future__ import annotations

import asyncio
import errno
import gzip
import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.live import committer
from service.live.committer import Committer
from service.predict.batching import Batcher
from tests.model_store.graph_log.test_full_disk import largest_file
from tests.service.live.rebuilt import HEADERS, KEY, add_node, change, commit, edge, features, predict
from tests.service.named import FAN, fan, named_contents
from tests.service.serving import in_thread, refused

HUGE = [1e30] * 5


def state(client: httpx.Client) -> tuple[Any, ...]:
    """What a refused request leaves as it is."""
    answer = client.get("/graph").json()
    return answer["sequence"], answer["hash"], answer["nodes"], answer["edges"], answer["log"]["bytes"]


@pytest.fixture(scope="module")
def changed(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Has the node 100, and no longer the node 7."""
    import shutil

    own = shutil.copytree(store, tmp_path_factory.mktemp("changed") / "store")
    with in_thread(own, write_keys=(KEY,), max_operations=20) as client:
        commit(client, add_node(100, 1, 0, 1), {"op": "remove_node", "id": 7}, key="first")
        yield client


@pytest.mark.parametrize(
    ("operations", "status", "code", "message"),
    [
        ([add_node(100)], 409, "conflict", "operation 0: node 100 exists already"),
        ([add_node(101), add_node(101)], 409, "conflict", "operation 1: node 101 exists already"),
        ([add_node(101, 1, 5000)], 404, "unknown_node", "operation 0: node 5000 is not in the graph"),
        ([add_node(101, 1, 7)], 404, "unknown_node", "operation 0: node 7 is not in the graph"),
        ([add_node("x")], 422, "invalid", "the ids of this graph are whole numbers"),
        ([add_node(101), {"op": "remove_node", "id": 7}], 404, "unknown_node", "operation 1"),
        ([edge("add_edge", 0, 100)], 409, "conflict", "edge 0 - 100 exists already"),
        ([edge("remove_edge", 3, 100)], 409, "conflict", "there is no edge 3 - 100"),
        ([edge("add_edge", 3, 3)], 422, "invalid", "from 3 to itself"),
        ([add_node(101) | {"features": [1.0] * 4}], 422, "invalid", "operation 0: node 101 has 4 features, expected 5"),
        ([add_node(101) | {"features": [1.0] * 4 + [float("nan")]}], 422, "invalid", "NaN"),
        ([add_node(101) | {"features": [1.0] * 4 + [float("inf")]}], 422, "invalid", "inf"),
        ([add_node(101) | {"features": HUGE}], 422, "invalid", "too large for the model"),
        ([add_node(101), {"op": "set_features", "id": 3, "features": HUGE}], 422, "invalid", "operation 1"),
        ([add_node(101) | {"features": {"indices": [0, 0], "values": [1, 2]}}], 422, "invalid", "more than once"),
        ([add_node(101) | {"features": {"indices": [0], "values": [1, 2]}}], 422, "invalid", "as many of both"),
        ([add_node(101) | {"features": {"indices": [9], "values": [1]}}], 422, "invalid", "feature index 9"),
        ([add_node(101) | {"features": {"days": 3}}], 422, "invalid", "trained without names"),
        ([add_node(101) | {"label": 3}], 422, "invalid", "expected a class from 0 to 2"),
        ([add_node(101) | {"label": "w"}], 422, "invalid", "expected one of 'x', 'y', 'z'"),
        ([add_node(101) | {"label": True}], 422, "invalid", "operations.0.label"),
        ([add_node(101) | {"colour": 1}], 422, "invalid", "operations.0.colour"),
        ([add_node(2**63)], 422, "invalid", "operations.0.id"),
        ([{"op": "rename_node", "id": 3}], 422, "invalid", "op should be one of add_node"),
        ([{"id": 3}], 422, "invalid", "operations.0"),
        ([3], 422, "invalid", "operations.0"),
        ([], 422, "invalid", "changes nothing"),
        ([edge("add_edge", 3, 100)] * 21, 413, "batch_too_large", "21 operations in one request, the limit is 20"),
    ],
)
def test_a_request_that_cannot_be_applied_leaves_the_log_as_it_is(
    changed: httpx.Client, operations: list[Any], status: int, code: str, message: str
) -> None:
    before = state(changed)
    content = json.dumps({"operations": operations})  # with NaN and Infinity, as Python's json writes them
    response = changed.post("/graph", content=content, headers=HEADERS)
    assert message in refused(response, status, code)
    assert state(changed) == before


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b"{", 400, "not_json"),
        (b"[]", 422, "invalid"),
        (b'{"operations": 3}', 422, "invalid"),
        (b'{"operations": [{"op": "remove_node", "id": 3}], "upsert": 1}', 422, "invalid"),
        (b'{"operations": [{"op": "remove_node", "id": 3}], "atomic": true}', 422, "invalid"),
        (b'{"operations": %b}' % (b"[" * 3000), 400, "not_json"),
        (b'{"operations": [{"op": "remove_node", "id": 3}]}'.ljust(9 * 2**20), 413, "body_too_large"),
    ],
)
def test_a_body_that_is_no_change_is_refused(changed: httpx.Client, content: bytes, status: int, code: str) -> None:
    before = state(changed)
    refused(changed.post("/graph", content=content, headers=HEADERS), status, code)
    assert state(changed) == before


@pytest.mark.parametrize("key", ["", "k" * 256, "caf\u00e9".encode().decode("latin-1")])
def test_an_idempotency_key_is_short_and_printable(changed: httpx.Client, key: str) -> None:
    headers = HEADERS | {"idempotency-key": key}
    body = {"operations": [add_node(500)]}
    refused(
        changed.post("/graph", json=body, headers={name: value.encode("latin-1") for name, value in headers.items()}),
        422,
        "invalid",
    )


def test_a_key_makes_a_change_once_and_fits_one_change(changed: httpx.Client) -> None:
    before = state(changed)
    again = change(changed, add_node(100, 1, 0, 1), {"op": "remove_node", "id": 7}, key="first")
    assert (again.status_code, again.json()["sequence"], again.json()["applied"]) == (200, 1, 2)
    message = refused(change(changed, add_node(101), key="first"), 409, "conflict")
    assert "the idempotency key 'first' belongs to another change" in message
    assert state(changed) == before


def test_requests_at_the_same_time_are_committed_in_an_order(live: httpx.Client) -> None:
    """Each of 40 changes is sent twice with its key, and once without; and a node is added by all of them."""

    def send(place: int) -> int:
        number = place // 3
        key = None if place % 3 == 2 else f"key {number}"
        with httpx.Client(base_url=live.base_url, timeout=30) as client:
            response = change(client, add_node(100 + number, number, 0), key=key)
            return response.json()["sequence"] if response.status_code == 200 else -response.status_code

    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(send, range(120)))
    for number in range(40):
        *keyed, unkeyed = answers[3 * number : 3 * number + 3]
        assert keyed[0] == keyed[1], "one change, or one conflict with the request without a key"
        assert sorted((keyed[0] > 0, unkeyed > 0)) == [False, True]
    assert sorted(max(answers[3 * number :][:3]) for number in range(40)) == list(range(1, 41))
    assert live.get("/graph").json()["nodes"] == 100


@pytest.mark.parametrize("has_answers", [True, False])
def test_a_group_delays_the_next_one_while_answers_are_computed(
    own_store: Path, monkeypatch: pytest.MonkeyPatch, has_answers: bool
) -> None:
    """With an interval of an hour, a change after a group of three is not committed in time."""
    commit_group, num_batches = Committer._commit_group, itertools.count() if has_answers else itertools.repeat(0)

    async def commit_three(self: Committer, waiting: list[Any]) -> None:
        monkeypatch.setattr(Committer, "_commit_group", commit_group)
        while len(self._queue) < 3:
            await asyncio.sleep(0.01)
        await commit_group(self, waiting)

    monkeypatch.setattr(committer, "INTERVAL_SECONDS", 3600)
    monkeypatch.setattr(Committer, "_commit_group", commit_three)
    counted = property(lambda _batcher: next(num_batches), lambda *_: None)
    monkeypatch.setattr(Batcher, "num_batches", counted, raising=False)
    with in_thread(own_store, write_keys=(KEY,), deadline_seconds=1) as client:
        with ThreadPoolExecutor(3) as pool:
            group = list(pool.map(lambda node: change(client, add_node(node)).status_code, range(100, 103)))
        assert group == [200] * 3
        later = change(client, add_node(103))
        if has_answers:
            refused(later, 503, "deadline")
        else:
            assert later.status_code == 200


def test_upsert_makes_updates_and_no_effects(live: httpx.Client) -> None:
    operations = [
        add_node(0, 1, 1, 59),
        add_node(100, 1, 59),
        {"op": "remove_node", "id": 5000},
        edge("remove_edge", 3, 59),
        edge("add_edge", 0, 59),
    ]
    answer = change(live, *operations, upsert=True).json()
    assert (answer["sequence"], answer["applied"], answer["skipped"], answer["nodes"]) == (1, 1, 4, 61)
    assert answer["durability"] == "fsync"
    assert live.get("/graph/nodes/0").json()["features"] == features(1)
    assert live.get("/graph/nodes/59").json()["neighbors"] == [0, 100]


def test_removed_nodes_are_unknown_until_they_come_again(live: httpx.Client) -> None:
    neighbors = live.get("/graph/nodes/7").json()["neighbors"]
    assert neighbors
    commit(live, {"op": "remove_node", "id": 7})
    refused(live.post("/predict", json={"nodes": [7]}), 404, "unknown_node")
    refused(live.get("/graph/nodes/7"), 404, "unknown_node")
    refused(live.get("/nodes/7"), 404, "unknown_node")
    new = {"id": "a", "features": features(1), "neighbors": [7]}
    refused(live.post("/predict", json={"new_nodes": [new]}), 404, "unknown_node")
    answer = live.post("/predict", json={"nodes": [6, 7], "new_nodes": [new], "on_error": "per_item"}).json()
    assert [entry.get("code") for entry in answer["predictions"]] == [None, "unknown_node", "unknown_node"]
    assert 7 not in live.get(f"/graph/nodes/{neighbors[0]}").json()["neighbors"]
    commit(live, add_node(7, 3))
    answer = live.get("/graph/nodes/7").json()
    assert (answer["degree"], answer["sequence"], answer["features"]) == (0, 2, features(3))
    assert answer["added"]
    assert set(predict(live, nodes=[6, 7])) == {6, 7}


def test_names_of_features_classes_and_nodes(tmp_path: Path) -> None:
    from model_store import Store

    Store(tmp_path).publish("fans", named_contents(), onnx=False, activate=True)
    with in_thread(tmp_path, write_keys=(KEY,)) as client:
        node = {"op": "add_node", "id": "new fan", "features": FAN, "neighbors": ["fan-7", "fan-9"], "label": "50%"}
        commit(
            client, node, {"op": "set_label", "id": "fan-8", "label": 0}, {"op": "set_label", "id": "fan-9", "label": None}
        )
        answer = client.get("/graph/nodes/new%20fan").json()
        assert (answer["features"], answer["neighbors"]) == (FAN, ["fan-7", "fan-9"])
        assert (answer["label"], answer["class"], answer["split"]) == (1, "50%", None)
        assert client.get("/nodes/fan-8").json()["class"] == "loud"
        assert client.get("/nodes/fan-9").json()["class"] is None
        assert client.get("/nodes/fan-8").json()["features"] == fan(8)
        wrong = node | {"id": "b", "features": FAN | {"genre": "polka"}}
        response = change(client, wrong)
        assert "'genre'" in refused(response, 422, "invalid")
        assert response.json()["details"] == {"operation": 0, "node": "b", "feature": "genre"}
        assert "strings of 1 to 256 bytes" in refused(change(client, node | {"id": 3}), 422, "invalid")


def test_write_keys_change_and_read_and_api_keys_only_read(own_store: Path) -> None:
    reader = {"authorization": f"Bearer {'r' * 16}"}
    body = {"operations": [add_node(100)]}
    with in_thread(own_store, api_keys=("r" * 16,)) as client:
        assert "SGF_WRITE_KEYS" in refused(client.post("/graph", json=body, headers=reader), 404, "not_found")
    with in_thread(own_store, write_keys=(KEY,), api_keys=("r" * 16,)) as client:
        refused(client.post("/graph", json=body), 401, "unauthorized")
        refused(client.post("/graph", json=body, headers=reader), 403, "forbidden")
        refused(client.get("/graph"), 401, "unauthorized")
        assert client.get("/graph", headers=reader).json()["sequence"] == 0
        assert client.post("/graph", json=body, headers=HEADERS).json()["sequence"] == 1
        assert client.get("/graph/nodes/100", headers=HEADERS).status_code == 200
        assert client.post("/predict", json={"nodes": [100]}, headers=HEADERS).status_code == 200
    with in_thread(own_store, write_keys=(KEY,)) as client:
        assert client.get("/graph").status_code == 200, "without API keys, reading needs none"


def test_bodies_may_be_large_and_compressed(live: httpx.Client) -> None:
    operations = [add_node(1000 + number, number, number % 60) for number in range(2000)]
    headers = HEADERS | {"content-encoding": "gzip", "content-type": "application/json"}
    content = gzip.compress(json.dumps({"operations": operations}).encode())
    response = live.post("/graph", content=content, headers=headers)
    assert response.status_code == 200, response.text
    assert (response.json()["applied"], response.json()["nodes"]) == (2000, 2060)


def test_min_sequence_waits_for_another_service(own_store: Path) -> None:
    with in_thread(own_store, write_keys=(KEY,)) as writer, in_thread(own_store, deadline_seconds=5.0) as reader:
        for number in range(5):
            sequence = commit(writer, add_node(100 + number, number, 0))
            answer = reader.post("/predict", json={"nodes": [100 + number], "min_sequence": sequence}).json()
            assert answer["sequence"] >= sequence
        assert reader.get("/graph").json()["hash"] == writer.get("/graph").json()["hash"]
    with in_thread(own_store, deadline_seconds=0.2) as reader:
        response = reader.post("/embed", json={"nodes": [0], "min_sequence": 6})
        assert "sequence 5 here, and the request needs 6" in refused(response, 503, "behind")
        assert response.headers["retry-after"] == "1"


def test_a_disk_without_room_refuses_the_change_and_takes_the_next(live: httpx.Client) -> None:
    commit(live, add_node(100))
    before = state(live)
    with largest_file(before[-1] + 20):
        message = refused(change(live, add_node(101), key="a"), 503, "store_unavailable")
        assert "the changes are not in it" in message
        assert predict(live, nodes=[100])
    assert state(live) == before
    assert commit(live, add_node(101), key="a") == 2


def test_a_store_that_is_read_only_says_what_to_do(live: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_folder: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("model_store.graph_log.lease.make_folder", refuse)  # a mount needs root
    message = refused(change(live, add_node(100)), 503, "store_unavailable")
    assert "Read-only file system" in message
    assert "SGF_GRAPH_LOG=redis" in message
    assert predict(live, nodes=[0])


@pytest.mark.parametrize(
    ("question", "status", "code", "message"),
    [
        ({"assuming": [{"op": "remove_node", "id": 5000}]}, 404, "unknown_node", "operation 0: node 5000"),
        ({"assuming": [add_node(0)]}, 409, "conflict", "operation 0: node 0 exists already"),
        ({"assuming": [{"op": "remove_node", "id": 0}]}, 404, "unknown_node", "node 0 is not in the graph"),
        ({"assuming": [add_node(100) | {"features": [1.0]}]}, 422, "invalid", "operation 0: node 100 has 1 features"),
        ({"assuming": [{"op": "x"}]}, 422, "invalid", "assuming.0"),
        ({"assuming": [{"op": "remove_node", "id": 5000}], "on_error": "per_item"}, 404, "unknown_node", "operation 0"),
        ({"assuming": [edge("add_edge", 0, 59)] * 21}, 413, "batch_too_large", "21 operations"),
        ({"min_sequence": -1}, 422, "invalid", "min_sequence"),
    ],
)
def test_wrong_assumptions(changed: httpx.Client, question: Any, status: int, code: str, message: str) -> None:
    assert message in refused(changed.post("/predict", json={"nodes": [0], **question}), status, code)


def test_nodes_without_an_answer_after_assumed_changes_get_their_errors(changed: httpx.Client) -> None:
    new = [
        {"id": "a", "features": features(1), "neighbors": [101]},
        {"id": "b", "features": features(2), "neighbors": [1]},
        {"id": "c", "features": [1.0], "neighbors": [0]},
    ]
    assuming = [add_node(101, 3, 0), {"op": "remove_node", "id": 1}]
    question = {"nodes": [0, 1, 101, 5000], "new_nodes": new, "assuming": assuming}
    answer = changed.post("/predict", json=question | {"on_error": "per_item"}).json()
    errors = {entry["node"]: entry["code"] for entry in answer["predictions"] if "error" in entry}
    assert errors == {1: "unknown_node", 5000: "unknown_node", "b": "unknown_node", "c": "invalid"}
    valid = changed.post("/predict", json={"nodes": [0, 101], "new_nodes": new[:1], "assuming": assuming}).json()
    assert [entry for entry in answer["predictions"] if "error" not in entry] == valid["predictions"]
    question = {"nodes": [1], "assuming": assuming, "on_error": "per_item"}
    (entry,) = changed.post("/predict", json=question).json()["predictions"]
    assert entry["code"] == "unknown_node"


def test_the_examples_of_the_document_work_also_when_the_first_nodes_are_gone(live: httpx.Client) -> None:
    commit(live, {"op": "remove_node", "id": 0}, {"op": "remove_node", "id": 1})
    for _ in range(2):
        paths = live.get("/openapi.json").json()["paths"]
        assert (
            live.get(f"/graph/nodes/{paths['/graph/nodes/{node_id}']['get']['parameters'][0]['example']}").status_code == 200
        )
        for path in ("/predict", "/graph"):
            for example in paths[path]["post"]["requestBody"]["content"]["application/json"]["examples"].values():
                operations = example["value"].get("operations", ())
                response = live.post(path, json=example["value"], headers=HEADERS)
                assert response.status_code == 200, response.text
                if any(operation["op"] == "add_node" for operation in operations) and "upsert" not in example["value"]:
                    commit(live, {"op": "remove_node", "id": operations[0]["id"]})
