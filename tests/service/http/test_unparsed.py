"""Requests that wait, and usual requests, which do not pass through the parser of their connection: each is one whole
request, and nothing of it is lost.
"""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httptools
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.admission import WINDOW_SECONDS
from service.http.request import usual_head
from service.predict.predictor import Answer, Predictor
from tests.service.http import raw
from tests.service.http.raw import BODY, connect, read_response, readable, request
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
def test_a_usual_request_is_one_whole_request_for_the_parser(lines: list[bytes], body: bytes, end: bytes) -> None:
    data = b"POST /predict HTTP/1.1\r\n" + b"".join(line + end for line in lines) + b"\r\n" + body
    if usual_head(data) is None:
        return
    parsed = Parsed(data)
    assert (parsed.valid, parsed.complete, parsed.bodies) == (True, 1, [body])


def test_which_requests_are_usual() -> None:
    def is_usual(data: bytes) -> bool:
        return usual_head(data) is not None

    usual = request()
    assert is_usual(usual)
    assert is_usual(request(b" " * 4000, b"authorization: Bearer k", path=b"/embed"))
    assert is_usual(request(BODY, b"connection: keep-alive"))
    for unusual in (
        usual[:-1],
        usual + b"x",
        2 * usual,
        usual.replace(b"POST", b"GET"),
        usual.replace(b"/predict", b"/models"),
        request(BODY, version=b"1.0"),
        request(BODY, b"connection: close"),
        request(BODY, b"connection: upgrade", b"upgrade: h2c"),
        request(BODY, b"expect: 100-continue"),
        request(BODY, b"content-length: 14"),
        request(b" " * 9000),
    ):
        assert not is_usual(unusual)


Busy = tuple[httpx.Client, threading.Event]
OVERLOADED = pytest.mark.parametrize("busy", [0.05], indirect=True)


@pytest.fixture
def busy(store: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Busy]:
    """A service with one slot, which is taken, and a queue, until the event is set. What waits is not refused.

    The parameter is the bound of the queue, in seconds.
    """
    go, answer = threading.Event(), Predictor.answer

    async def slowly(self: Predictor, *arguments: Any) -> Answer:
        while not go.is_set():
            await asyncio.sleep(0.005)
        return await answer(self, *arguments)

    monkeypatch.setattr(Predictor, "answer", slowly)
    monkeypatch.setattr("service.admission.ANSWER_LIMIT", 1)
    monkeypatch.setattr("service.admission.PATIENCE", 1000.0)
    limits = {"max_queue_seconds": getattr(request, "param", 30.0)}
    with in_thread(store, api_keys=("a-key-of-sixteen",), **limits) as client, ExitStack() as opened:
        client.headers["authorization"] = "Bearer a-key-of-sixteen"
        first = [opened.enter_context(connect(client)) for _ in range(2)]
        for caller in first:
            caller.sendall(raw.request(BODY, KEY))
        until(lambda: "sgf_queue_depth 2.0" in client.get("/metrics").text)
        yield client, go
        go.set()


KEY = b"authorization: Bearer a-key-of-sixteen"


def test_a_request_that_has_waited_is_answered_like_any_other(busy: Busy) -> None:
    client, go = busy
    with connect(client) as caller, connect(client) as stranger, connect(client) as pipelining:
        caller.sendall(request(BODY, KEY, b"x-request-id: mine"))
        stranger.sendall(request())
        pipelining.sendall(request(BODY, KEY))
        assert read_response(stranger)[1]["code"] == "unauthorized", "and does not wait"
        until(lambda: "sgf_queue_depth 4.0" in client.get("/metrics").text)
        pipelining.sendall(request(b'{"nodes": [2]}', KEY) + request(b'{"nodes": [3]}', KEY))
        client.get("/health/live")
        go.set()
        head, answer = read_response(caller)
        assert b"x-request-id: mine" in head
        assert answer["predictions"][0]["node"] == 1
        assert [read_response(pipelining)[1]["predictions"][0]["node"] for _ in range(3)] == [1, 2, 3]
        until(lambda: "sgf_queue_depth 0.0" in client.get("/metrics").text)


@OVERLOADED
def test_a_refused_one_keeps_its_connection_and_what_is_behind_it(busy: Busy, monkeypatch: pytest.MonkeyPatch) -> None:
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


@OVERLOADED
def test_in_an_overload_a_request_is_refused_as_it_arrives(busy: Busy, monkeypatch: pytest.MonkeyPatch) -> None:
    client, go = busy
    headers = KEY, b"x-request-id: mine"
    with ExitStack() as opened:

        def arrives() -> socket.socket | None:
            caller = opened.enter_context(connect(client))
            caller.sendall(request(BODY, *headers))
            return caller if readable(caller, 0.2) else None

        callers: list[socket.socket] = []
        until(lambda: callers.extend(filter(None, [arrives()])) or callers)
        head, answer = read_response(callers[0])
        assert head.startswith(b"HTTP/1.1 429 ")
        assert head.endswith(b"retry-after: 1\r\nx-request-id: mine")
        assert re.fullmatch(r"overloaded: \d+ requests wait or run; retry after 1 s", answer["error"])
        until(lambda: 'sgf_requests_total{code="429",route="/predict"}' in client.get("/metrics").text)
        until(lambda: 'sgf_shed_total{reason="queue"} 0.0' not in client.get("/metrics").text)
        callers[0].sendall(request(BODY, *headers))  # of another caller: a pool reuses a connection at once
        assert read_response(callers[0])[1]["code"] == "overloaded"
        monkeypatch.setattr("service.admission.MIN_REFUSALS", 0)
        time.sleep(4 * WINDOW_SECONDS)
        callers[0].sendall(request(BODY, *headers))  # beyond the number of refusals, it waits
        assert not readable(callers[0], 0.05)
        go.set()
        assert read_response(callers[0])[1]["predictions"][0]["node"] == 1


def test_usual_and_other_requests_alternate_on_a_connection(store: Path) -> None:
    def ask(node: int) -> bytes:
        return request(b'{"nodes": [%d]}' % node)

    with in_thread(store) as client, connect(client) as caller:
        first, second = ask(3)[:40], ask(3)[40:]
        for data in (ask(1), ask(2), first, second, ask(4) + ask(5), ask(6), b"\r\n" + ask(7), ask(8)):
            caller.sendall(data)
            client.get("/health/live")  # so that it is read before the next part comes
        assert [read_response(caller)[1]["predictions"][0]["node"] for _ in range(8)] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_refused_body_that_looks_like_a_request_is_no_request(store: Path) -> None:
    def ask(node: int) -> bytes:
        return request(b'{"nodes": [%d]}' % node, KEY)

    with in_thread(store, api_keys=("a-key-of-sixteen",)) as client, connect(client) as caller:
        caller.sendall(request(ask(1)).removesuffix(ask(1)))  # without a key
        assert read_response(caller)[1]["code"] == "unauthorized"
        caller.sendall(ask(1))  # its body
        client.get("/health/live")
        caller.sendall(ask(2))
        assert read_response(caller)[1]["predictions"][0]["node"] == 2


def test_a_body_of_five_kilobytes_that_waits_counts_against_the_budget(busy: Busy) -> None:
    client, go = busy
    with connect(client) as caller:
        body = BODY + b" " * 5000
        caller.sendall(request(body, KEY))
        until(lambda: f"sgf_buffered_bytes {len(body)}.0" in client.get("/metrics").text)
        go.set()
        assert read_response(caller)[1]["predictions"][0]["node"] == 1


def test_a_client_that_leaves_is_skipped(busy: Busy) -> None:
    client, go = busy
    with connect(client) as caller:
        caller.sendall(request(BODY, KEY))
        until(lambda: "sgf_queue_depth 3.0" in client.get("/metrics").text)
    go.set()
    until(lambda: "sgf_queue_depth 0.0" in client.get("/metrics").text)
    assert client.post("/predict", json={"nodes": [1]}).status_code == 200
