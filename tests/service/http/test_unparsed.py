"""Requests that wait unparsed: each is one whole request for any reader, and nothing of it is lost or repeated."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httptools
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.http.request import Unparsed
from service.predict.predictor import Answer, Predictor
from tests.service.http.raw import BODY, connect, read_response, request
from tests.service.serving import in_thread, until

LINES = [
    b"host: x",
    b"Content-Length: 14",
    b"content-length:14",
    b"content-length: 4",
    b"content-length: +14",
    b"content-length : 14",
    b" content-length: 14",
    b"x: y\ncontent-length: 3",
    b"transfer-encoding: chunked",
    b"Transfer-Encoding : chunked",
    b"x: y\ntransfer-encoding: chunked",
    b"upgrade: h2c",
    b"Expect: 100-continue",
    b"connection: close",
    b"x-request-id: mine",
    b"x: content-length: 99",
    b"content-lengthy: 1",
    b"\tfolded",
]


class Parsed:
    """What the HTTP parser makes of some bytes."""

    def __init__(self, data: bytes) -> None:
        self.bodies: list[bytes] = []
        self.complete = 0
        self.valid = True
        try:
            httptools.HttpRequestParser(self).feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.valid = False

    def on_message_begin(self) -> None:
        self.bodies.append(b"")

    def on_body(self, body: bytes) -> None:
        self.bodies[-1] += body

    def on_message_complete(self) -> None:
        self.complete += 1


@given(
    st.lists(st.sampled_from(LINES), max_size=6),
    st.sampled_from(
        [BODY, b"", b"x" * 4, BODY + b"POST / HTTP/1.1\r\n\r\n", b"0\r\n\r\n", b"e\r\n" + BODY + b"\r\n0\r\n\r\n"]
    ),
    st.sampled_from([b"\r\n", b"\n"]),
)
def test_what_waits_unparsed_is_one_whole_request_for_the_parser(lines: list[bytes], body: bytes, end: bytes) -> None:
    data = b"POST /predict HTTP/1.1\r\n" + b"".join(line + end for line in lines) + b"\r\n" + body
    unparsed = Unparsed.of(None, data)  # type: ignore[arg-type]  # it is not asked
    if unparsed is None:
        return
    parsed = Parsed(data)
    if parsed.valid:  # else it is refused when its turn comes, and the connection is closed
        assert (parsed.complete, parsed.bodies) == (1, [body])


def test_usual_requests_wait_unparsed_and_others_do_not() -> None:
    def waits(data: bytes) -> bool:
        return Unparsed.of(None, data) is not None  # type: ignore[arg-type]

    usual = request()
    assert waits(usual)
    assert waits(request(b" " * 4000, b"authorization: Bearer k", path=b"/embed"))
    for unusual in (
        usual[:-1],
        usual + b"x",
        2 * usual,
        usual.replace(b"POST", b"GET"),
        usual.replace(b"/predict", b"/models"),
        request(BODY, version=b"1.0"),
        request(BODY, b"connection: close"),
        request(b" " * 9000),
    ):
        assert not waits(unusual)


@pytest.fixture
def busy(store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[httpx.Client, threading.Event]]:
    """A service with one place, which is taken, and a queue, until the event is set."""
    go, answer = threading.Event(), Predictor.answer

    async def slowly(self: Predictor, *arguments: Any) -> Answer:
        while not go.is_set():
            await asyncio.sleep(0.005)
        return await answer(self, *arguments)

    monkeypatch.setattr(Predictor, "answer", slowly)
    monkeypatch.setattr("service.admission.ANSWER_LIMIT", 1)
    with in_thread(store, api_keys=("a-key-of-sixteen",)) as client, ExitStack() as opened:
        client.headers["authorization"] = "Bearer a-key-of-sixteen"
        first = [opened.enter_context(connect(client)) for _ in range(2)]
        for caller in first:
            caller.sendall(request(BODY, KEY))
        until(lambda: "sgf_queue_depth 2.0" in client.get("/metrics").text)
        yield client, go
        go.set()


KEY = b"authorization: Bearer a-key-of-sixteen"


def test_a_request_that_has_waited_unparsed_is_answered_like_any_other(busy: tuple[httpx.Client, threading.Event]) -> None:
    client, go = busy
    with connect(client) as caller, connect(client) as stranger, connect(client) as pipelining:
        caller.sendall(request(BODY, KEY, b"x-request-id: mine"))
        stranger.sendall(request())
        pipelining.sendall(request(BODY, KEY))
        until(lambda: "sgf_queue_depth 5.0" in client.get("/metrics").text)
        pipelining.sendall(request(b'{"nodes": [2]}', KEY) + request(b'{"nodes": [3]}', KEY))
        client.get("/health/live")
        go.set()
        head, answer = read_response(caller)
        assert b"x-request-id: mine" in head
        assert answer["predictions"][0]["node"] == 1
        assert read_response(stranger)[1]["code"] == "unauthorized", "and it gives its place back"
        assert [read_response(pipelining)[1]["predictions"][0]["node"] for _ in range(3)] == [1, 2, 3]
        until(lambda: "sgf_queue_depth 0.0" in client.get("/metrics").text)


def test_a_refused_one_keeps_its_connection_and_what_is_behind_it(
    busy: tuple[httpx.Client, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, go = busy
    with connect(client) as caller:
        monkeypatch.setattr("service.admission.PATIENCE", 0.0)  # from now on, a queue beyond its bound is refused at once
        caller.sendall(request(BODY, KEY, b"x-request-id: first"))
        client.get("/health/live")
        caller.sendall(request(b'{"nodes": [2]}', KEY, b"x-request-id: second"))
        head, answer = read_response(caller)
        assert (answer["code"], b"x-request-id: first" in head) == ("overloaded", True)
        go.set()
        head, answer = read_response(caller)
        assert b"x-request-id: second" in head
        assert "predictions" in answer or answer["code"] == "overloaded"
        until(lambda: client.post("/predict", json={"nodes": [1]}).status_code == 200)
        caller.sendall(request(b'{"nodes": [3]}', KEY))
        assert read_response(caller)[1]["predictions"][0]["node"] == 3


def test_a_client_that_leaves_is_skipped(busy: tuple[httpx.Client, threading.Event]) -> None:
    client, go = busy
    with connect(client) as caller:
        caller.sendall(request(BODY, KEY))
        until(lambda: "sgf_queue_depth 3.0" in client.get("/metrics").text)
    go.set()
    until(lambda: "sgf_queue_depth 0.0" in client.get("/metrics").text)
    assert client.post("/predict", json={"nodes": [1]}).status_code == 200
