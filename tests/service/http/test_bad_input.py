"""Bad input gets one clear sentence and harms nothing else."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from model_store import Store
from service.predict.predictor import refusal_with_id
from sgformer import NeighborhoodTooLarge
from tests.model_store.samples import small_contents
from tests.service.http.raw import connect, read_response
from tests.service.serving import in_thread, refused

NEW = {"id": "a", "features": [1.0] * 5, "neighbors": [1]}


def changed(**parts: Any) -> dict[str, Any]:
    return {"new_nodes": [NEW | parts]}


LARGE = [
    ({"new_nodes": [NEW, NEW | {"id": "b"}], "joint": True, "edges": [["a", "b"]] * 20_001}, "20,001 edges in one"),
    ({"nodes": [1] * 1001}, "1,001 nodes in one request, the limit is 1,000"),
    (changed(neighbors=[1] * 20_001), "20,001 neighbours in one request, the limit is 20,000"),
]
UNKNOWN = [
    ({"nodes": [-1]}, "node -1 is not in the graph, expected ids from 0 to 59"),
    ({"nodes": [60]}, "node 60 is not in the graph, expected ids from 0 to 59"),
    ({"nodes": [2**62]}, f"node {2**62} is not in the graph, expected ids from 0 to 59"),
    ({"nodes": [1, "x" * 200]}, "node 'xxxxxx"),
    ({"nodes": ["5"]}, "node '5' is not in the graph, expected ids from 0 to 59"),
    (
        changed(neighbors=[60]),
        "new node 'a' has an unknown neighbour: node 60 is not in the graph, expected ids from 0 to 59",
    ),
]
INVALID = [
    ({"nodes": []}, "the request asks nothing, expected nodes or new_nodes"),
    ({"nodes": [1], "colour": 3}, "colour: Extra inputs are not permitted"),
    ({"nodes": [1.5]}, "nodes.0: Input should be a valid integer or a valid string"),
    ({"nodes": [True]}, "nodes.0: Input should be a valid integer or a valid string"),
    ({"nodes": [10**30]}, "nodes.0: Input should be less than 9223372036854775808"),
    ({"nodes": [1, "x" * 5000]}, "nodes.1: String should have at most 256 characters"),
    (changed(id="x" * 5000), "new_nodes.0.id: String should have at most 256 characters"),
    ({"nodes": [1], "top_k": 10**30}, "top_k: Input should be less than 2147483648"),
    (changed(id=10**30), "new_nodes.0.id: Input should be less than"),
    ({"new_nodes": [NEW], "joint": True, "edges": [["a", 10**30]]}, "edges.0.1: Input"),
    ({"nodes": [1], "mode": "quick"}, "mode: Input should be 'exact' or 'frozen'"),
    ({"nodes": [1], "top_k": 0}, "top_k: Input should be greater than or equal to 1"),
    ({"nodes": [1], "joint": True}, "edges and joint are about new nodes, and there are none"),
    (changed(features=[1.0] * 4), "new node 'a' has 4 features, expected 5"),
    (changed(features=[1e39] + [0.0] * 4), "new node 'a': features hold NaN, infinity or more than 3.4e38"),
    (changed(features={"indices": [5], "values": [1.0]}), "new node 'a' has feature index 5, expected 0 to 4"),
    (changed(features={"indices": [1, 1], "values": [1.0, 2.0]}), "new node 'a' has a feature index more than once"),
    (
        changed(features={"indices": [-1], "values": [1.0]}),
        "new_nodes.0.features.indices.0: Input should be greater than or equal to 0",
    ),
    (changed(features="x"), "new_nodes.0.features: Input should be a valid array or an object"),
    (changed(features=["x"]), "new_nodes.0.features.0: Input should be a valid number"),
    (changed(features={"indices": [1], "values": []}), "new node 'a' has 1 indices and 0 values"),
    (changed(neighbors="x"), "new_nodes.0.neighbors: Input should be a valid array"),
    ({"new_nodes": [NEW, NEW]}, "two new nodes have the id 'a', expected different ones"),
    ({"new_nodes": [NEW], "edges": [["a", "b"]]}, "edges connect new nodes, which see each other only with"),
    ({"new_nodes": [NEW], "joint": True, "edges": [["a", "b"]]}, "edge end 'b' is not the id of a new node"),
    ({"new_nodes": [NEW], "joint": True, "edges": [["a", "a"]]}, "new node 'a': an edge to itself"),
    ([], "the body: Input should be an object"),
]
CASES = {(413, "batch_too_large"): LARGE, (404, "unknown_node"): UNKNOWN, (422, "invalid"): INVALID}


@pytest.mark.parametrize(
    ("status", "code", "question", "sentence"), [(*error, *case) for error, cases in CASES.items() for case in cases]
)
def test_a_question_that_cannot_be_answered(
    client: httpx.Client, status: int, code: str, question: Any, sentence: str
) -> None:
    response = client.post("/predict", json=question)
    assert refused(response, status, code).startswith(sentence)
    if code == "unknown_node":
        assert repr(response.json()["details"]["node"])[:40] in response.json()["error"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "not_json"),
        (b'{"nodes": [1', 400, "not_json"),
        (b'{"nodes": [NaN]}', 422, "invalid"),
        (b'{"new_nodes": [{"id": "a", "features": [1e400, 0, 0, 0, 0]}]}', 422, "invalid"),
        (b'{"new_nodes": [{"id": "a", "features": [NaN, 0, 0, 0, 0]}]}', 422, "invalid"),
        (b'{"new_nodes": [{"id": "a", "features": [Infinity, 0, 0, 0, 0]}]}', 422, "invalid"),
        (b'{"nodes": ["\xff\xfe"]}', 400, "not_json"),
        (b'{"nodes": [' + b"9" * 5000 + b"]}", 400, "not_json"),
        (b"[" * 100_000, 400, "not_json"),
        (b'{"nodes":' * 1_200, 400, "not_json"),
        (b"\x00\x01\x02", 400, "not_json"),
        (b'{"nodes": ["\\ud800"]}', 400, "not_json"),
    ],
)
def test_hostile_bodies(client: httpx.Client, body: bytes, status: int, code: str) -> None:
    response = client.post("/predict", content=body, headers={"content-type": "application/json"})
    refused(response, status, code)
    assert client.post("/predict", json={"nodes": [1]}).status_code == 200


def test_of_repeated_keys_the_last_one_counts(client: httpx.Client) -> None:
    response = client.post("/predict", content=b'{"nodes": [1], "nodes": [2]}', headers={"content-type": "application/json"})
    assert [one["node"] for one in response.json()["predictions"]] == [2]


def test_other_kinds_of_bodies(client: httpx.Client) -> None:
    body = json.dumps({"nodes": [1]}).encode()
    response = client.post("/predict", content=body, headers={"content-type": "text/plain"})
    sentence = refused(response, 415, "unsupported_media_type")
    assert sentence == "the content type is 'text/plain', expected application/json"
    headers = {"content-type": "application/json", "content-encoding": "br"}
    refused(client.post("/predict", content=body, headers=headers), 415, "unsupported_media_type")
    headers["content-encoding"] = "gzip"
    refused(client.post("/predict", content=body, headers=headers), 400, "bad_encoding")
    refused(client.post("/predict", content=gzip.compress(body)[:-6], headers=headers), 400, "bad_encoding")
    assert client.post("/predict", content=gzip.compress(body), headers=headers).status_code == 200


def test_bodies_that_are_too_large(store: Path) -> None:
    with in_thread(store, max_body_bytes=10_000) as client:
        refused(client.post("/predict", json={"nodes": [1] * 9000}), 413, "body_too_large")
        bomb = gzip.compress(b" " * 50_000_000)
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        refused(client.post("/predict", content=bomb, headers=headers), 413, "body_too_large")
        chunked = (b" " * 1000 for _ in range(100))  # without a content-length
        refused(client.post("/predict", content=chunked), 413, "body_too_large")
        assert client.post("/predict", json={"nodes": [1]}).status_code == 200


@pytest.mark.parametrize("chunked", [True, False])
def test_a_hundred_megabytes_are_refused_and_whoever_sends_them_hears_it(client: httpx.Client, chunked: bool) -> None:
    """It is read to its end, and thrown away: to somebody who is still sending, an early answer looks like a reset."""
    length = {} if chunked else {"content-length": str(100 * 2**20)}
    for _ in range(3):
        body = (b" " * 2**20 for _ in range(100))
        response = client.post("/predict", content=body, headers={"content-type": "application/json"} | length)
        refused(response, 413, "body_too_large")
    assert client.post("/predict", json={"nodes": [1]}).status_code == 200


DEAR = {
    "numbers": b'{"new_nodes":[{"id":1,"features":[' + b"0," * 2_000_000 + b"0]}]}",
    "objects": b'{"new_nodes":[' + b'{"id":1,"features":[]},' * 100_000 + b'{"id":1,"features":[]}]}',
    "fields": b"{" + b",".join(b'"%d":0' % number for number in range(200_000)) + b"}",
    "edges": b'{"edges":[' + b"[1,2]," * 1_000_000 + b"[1,2]]}",
    "zeros, 2 kB of gzip": b'{"nodes":[' + b"0," * 990_000 + b"0]}",
    "unknown names": b"{" + b",".join(b'"%d":0' % number for number in range(47_000)) + b"}",
}


@pytest.mark.parametrize("kind", DEAR)
def test_a_body_that_is_cheap_to_send_and_dear_to_read_is_refused_unread(
    client: httpx.Client, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.predict.questions._ADAPTER", None)
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    packed = gzip.compress(DEAR[kind])
    response = client.post("/predict", content=packed, headers=headers)
    assert refused(response, 413, "body_too_large").startswith("the body holds about ")
    assert response.json()["details"]["limit"] == 100_000


def test_a_large_body_within_the_limits_is_read(client: httpx.Client) -> None:
    question = {"nodes": [1] * 1000, "new_nodes": [], "edges": []}
    padded = json.dumps(question) + " " * 100_000
    response = client.post("/predict", content=padded, headers={"content-type": "application/json"})
    assert len(response.json()["predictions"]) == 1000


def test_features_that_overflow_are_refused_and_not_answered_wrongly(client: httpx.Client) -> None:
    """The squares of a LayerNorm leave float32 long before the features do; a row over their infinite root would be zero."""
    large = [3e25, -2e25, 1e25, 5e25, -4e25]
    question = {"new_nodes": [NEW, NEW | {"id": "large", "features": large}]}
    assert refused(client.post("/predict", json=question), 422, "no_answer").endswith("answer for node 'large'")
    scaled = [[value / 1e25 * size for value in large] for size in (1e6, 1e9)]
    found = [client.post("/predict", json=changed(features=one)).json()["predictions"][0] for one in scaled]
    assert found[0]["probabilities"] == pytest.approx(found[1]["probabilities"], abs=1e-4)  # its input is normalised


def test_what_is_no_http_gets_the_one_shape_too(client: httpx.Client) -> None:
    with connect(client) as caller:
        caller.sendall(b"soup\r\n\r\n")
        head, content = read_response(caller)
    assert head.startswith(b"HTTP/1.1 400 ")
    assert set(content) == {"error", "code", "details"}


def test_a_body_that_does_not_come(store: Path) -> None:
    with in_thread(store, body_seconds=1.0) as client, connect(client) as slow:
        slow.sendall(b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
        assert client.post("/predict", json={"nodes": [1]}).status_code == 200
        assert slow.recv(100).startswith(b"HTTP/1.1 408")


def test_a_caller_that_hangs_up_in_the_middle_harms_nobody(client: httpx.Client) -> None:
    for _ in range(20):
        with connect(client) as rude:
            rude.sendall(b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    assert client.post("/predict", json={"nodes": [1]}).status_code == 200


def test_paths_and_methods(client: httpx.Client) -> None:
    assert refused(client.get("/predict"), 405, "method_not_allowed") == "/predict takes POST, not GET"
    assert client.get("/predict").headers["allow"] == "POST"
    assert refused(client.get("/nothing"), 404, "not_found") == "there is no /nothing"
    refused(client.delete("/models"), 405, "method_not_allowed")
    refused(client.get("/models/9"), 404, "unknown_version")
    refused(client.get("/models/zero"), 422, "invalid")
    refused(client.get("/models/..%2F..%2Fetc"), 404, "not_found")
    refused(client.get("/models/1/report"), 404, "unknown_report")
    refused(client.post("/admin/retrain", json={}), 404, "not_found")


def test_a_neighbourhood_over_the_limit_is_told_its_size(store: Path) -> None:
    with in_thread(store, max_recompute=3) as client:
        question = changed(neighbors=[0])  # the hub
        response = client.post("/predict", json=question)
        refused(response, 413, "neighborhood_too_large")
        assert response.json()["details"]["size"] > 3
        many = changed(neighbors=[0, 1, 2, 3])  # more than the limit by themselves
        for one in (question, many):
            frozen = client.post("/predict", json=one | {"mode": "frozen"}).json()
            assert frozen["predictions"][0]["exactness"] == "frozen"


def test_what_the_mathematics_counts_is_told_by_name() -> None:
    refusal = refusal_with_id(NeighborhoodTooLarge(1, 9, 3), ["a", "b"])
    assert str(refusal).startswith("new node 'b': an exact answer would read 9 adjacency entries")
    assert refusal.details == {"node": "b", "size": 9, "limit": 3}


def test_a_new_node_without_a_finite_answer_is_refused(tmp_path: Path) -> None:
    """Features that float32 holds, but the model's products of them do not."""
    norms = {"input_layer_norm": False, "attention_layer_norm": False, "gnn_batch_norm": False}
    Store(tmp_path).publish("demo", small_contents(config=norms), onnx=False, activate=True)
    with in_thread(tmp_path) as client:
        fine = NEW | {"id": "fine"}
        question = {"new_nodes": [fine, NEW | {"features": [3e38, -3e38] * 2 + [3e38]}]}
        told = refused(client.post("/predict", json=question), 422, "no_answer")
        assert told == "the model has no finite answer for node 'a'"
        assert client.post("/predict", json={"new_nodes": [fine]}).status_code == 200


def test_a_fault_of_ours_is_told_in_the_one_shape_and_no_more(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("cannot read /srv/secret")

    monkeypatch.setattr("service.predict.batching.Batcher.compute", broken)
    monkeypatch.setattr("service.http.pages.last_rollback", broken)
    with in_thread(store) as client:
        for response in (client.post("/predict", json={"nodes": [1]}), client.get("/models")):
            told = refused(response, 500, "internal")
            assert told == "the service failed to answer a valid request; its log has the details"
            assert "secret" not in response.text


@pytest.mark.parametrize("body", [b"\xff\xfe{}", b"[" * 60_000, b'{"data": 1e999', b"no"])
def test_orders_that_are_no_json_are_told_so(store: Path, body: bytes) -> None:
    with in_thread(store, admin_token="t" * 20) as client:
        headers = {"authorization": f"Bearer {'t' * 20}", "content-type": "application/json"}
        refused(client.post("/admin/retrain", content=body, headers=headers), 400, "not_json")
