"""Whoever there is no place for hears so from the protocol: by the head of the request alone, without a task."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from service.answering import Answer, Answering
from service.app import create_app
from service.gateway import Gateway
from service.logs import AccessLog
from service.settings import Settings
from tests.service.serving import in_thread, refused, until

BODY = b'{"nodes": [1]}'
KEY = b"authorization: Bearer a-key-of-sixteen\r\n"
QUESTION = b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n%b\r\n%b"


class Full(NamedTuple):
    client: httpx.Client
    holding: threading.Event
    """Set by the one that holds the only place."""
    release: threading.Event
    """Set: he is answered."""
    called: list[str]
    """The paths that came as far as the application."""


@pytest.fixture(scope="module")
def small(store: Path) -> Iterator[Full]:
    """A service of one place."""
    holding, release, called = threading.Event(), threading.Event(), []
    answer, call = Answering.answer, Gateway.__call__

    async def slowly(self: Answering, *arguments: Any) -> Answer:
        holding.set()
        while not release.is_set():
            await asyncio.sleep(0.005)
        return await answer(self, *arguments)

    async def counted(self: Gateway, scope: Any, receive: Any, send: Any) -> None:
        called.append(scope.get("path", scope["type"]))
        await call(self, scope, receive, send)

    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(Answering, "answer", slowly)
        patch.setattr(Gateway, "__call__", counted)
        client = stack.enter_context(in_thread(store, max_inflight=1, api_keys=("a-key-of-sixteen",)))
        client.headers["authorization"] = "Bearer a-key-of-sixteen"
        yield Full(client, holding, release, called)


@pytest.fixture
def full(small: Full) -> Iterator[Full]:
    """Its place is taken."""
    small.release.clear()
    small.holding.clear()
    first = threading.Thread(target=lambda: small.client.post("/predict", json={"nodes": [1]}))
    first.start()
    assert small.holding.wait(60)
    small.called.clear()
    yield small
    small.release.set()
    first.join(timeout=60)


def asked(caller: socket.socket, *, more: bytes = b"", body: bytes = BODY, version: bytes = b"1.1") -> None:
    head = QUESTION.replace(b"HTTP/1.1", b"HTTP/" + version)
    caller.sendall(head % (len(body), KEY + more, body))


def heard(caller: socket.socket) -> tuple[bytes, dict[str, Any]]:
    """One whole answer: its head, and what it says."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += _more(caller)
    head, _, body = received.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    assert length, head
    while len(body) < int(length[1]):
        body += _more(caller)
    return head, json.loads(body)


def _more(caller: socket.socket) -> bytes:
    received = caller.recv(65_536)
    assert received, "the connection was closed"
    return received


def connected(client: httpx.Client) -> socket.socket:
    assert client.base_url.port
    return socket.create_connection(("127.0.0.1", client.base_url.port), timeout=60)


def test_it_is_told_in_the_shape_of_all_errors_without_a_task(full: Full) -> None:
    for path in ("/predict", "/embed"):
        response = full.client.post(path, json={"nodes": [1]}, headers={"x-request-id": "find-me"})
        assert refused(response, 429, "overloaded") == "too many requests at once; come back in a moment"
        assert (response.headers["retry-after"], response.headers["x-request-id"]) == ("1", "find-me")
        assert response.headers["content-type"] == "application/json"
    assert full.called == []


def test_its_connection_is_kept_and_what_comes_of_its_body_is_dropped(full: Full) -> None:
    with connected(full.client) as caller:
        for body in (BODY, b"x" * 1_000_000):
            asked(caller, body=body)
            assert heard(caller)[0].startswith(b"HTTP/1.1 429")
        caller.sendall(QUESTION[:-2] % (8, KEY))
        assert heard(caller)[1]["code"] == "overloaded", "it waits for no body"
        caller.sendall(b"POST /pr")  # which is the body
        asked(caller)
        assert heard(caller)[1]["code"] == "overloaded"
        full.release.set()
        until(lambda: full.client.post("/predict", json={"nodes": [1]}).status_code == 200)
        asked(caller)
        assert heard(caller)[1]["predictions"][0]["node"] == 1


def test_several_in_one_packet_are_each_told_in_turn_but_only_the_first_without_a_task(full: Full) -> None:
    """A packet may hold thousands: each goes through the event loop, where others have their turns."""
    with connected(full.client) as caller:
        named = [KEY + b"x-request-id: %d\r\n" % one for one in range(3)]
        caller.sendall(b"".join(QUESTION % (len(BODY), more, BODY) for more in named))
        received = b""
        while received.count(b'"details":{}}') < 3:
            received += _more(caller)
        assert re.findall(rb"HTTP/1.1 (\d+) ", received) == [b"429"] * 3
        assert re.findall(rb"x-request-id: (\d+)\r", received) == [b"0", b"1", b"2"]
    assert full.called == ["/predict"] * 2


@pytest.mark.parametrize(
    ("more", "version", "code"),
    [
        (b"connection: close\r\n", b"1.1", b"429"),
        (b"", b"1.0", b"429"),
        (b"authorization: Bearer another-key-16-long\r\n", b"1.1", b"403"),
    ],
)
def test_whoever_needs_more_than_that_answer_goes_the_way_of_all_others(
    full: Full, more: bytes, version: bytes, code: bytes
) -> None:
    with connected(full.client) as caller:
        asked(caller, more=more, version=version)
        assert heard(caller)[0].startswith(b"HTTP/1.1 " + code)
        if code == b"429":
            assert caller.recv(1) == b"", "it asked for the connection to be closed"
    assert full.called == ["/predict"]


def test_who_asks_first_whether_to_send_a_body_is_told_not_to(full: Full) -> None:
    with connected(full.client) as caller:
        head = QUESTION % (1_000, KEY + b"expect: 100-continue\r\n", b"")
        caller.sendall(head)
        assert heard(caller)[0].startswith(b"HTTP/1.1 429")
    assert full.called == ["/predict"]


def test_a_body_in_chunks_is_dropped_and_a_bad_one_refused(full: Full) -> None:
    with connected(full.client) as caller:
        head = QUESTION.replace(b"content-length: %d", b"transfer-encoding: chunked") % (KEY, b"")
        for chunks in (b"5\r\nabcde\r\n0\r\n\r\n", b"no size\r\n"):
            caller.sendall(head)
            assert heard(caller)[1]["code"] == "overloaded"
            caller.sendall(chunks)
        assert heard(caller)[1]["code"] == "bad_http"
        assert caller.recv(1) == b""


def test_pages_and_other_methods_are_not_turned_away(full: Full) -> None:
    assert full.client.get("/models").status_code == 200
    assert refused(full.client.get("/predict"), 405, "method_not_allowed")
    assert refused(full.client.post("/predict?x=1", json={"nodes": [1]}), 429, "overloaded"), "and not by its head"
    assert full.called == ["/models", "/predict", "/predict"]


def test_whoever_has_no_key_takes_nobodys_place(store: Path) -> None:
    """Strangers and a friend, whose heads come in the same turn of the event loop."""
    settings = Settings(store=store, max_inflight=1, api_keys=("a-key-of-sixteen",))
    key = (b"authorization", b"Bearer a-key-of-sixteen")

    async def heads() -> list[bool]:
        gateway = create_app(settings)
        given: list[list[tuple[bytes, bytes]]] = [[], [], [key], [key]]
        return [gateway.turned_away(one, "POST", b"/predict", headers) is None for one, headers in enumerate(given)]

    assert asyncio.run(heads()) == [True, True, True, False]


def test_it_is_counted_and_logged(full: Full, monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(series: str) -> float:
        return float(full.client.get("/metrics").text.partition(f"\n{series} ")[2].partition("\n")[0] or 0)

    series = ('sgf_shed_total{reason="inflight"}', 'sgf_requests_total{code="429",route="/predict"}')
    before = [counted(one) for one in series]
    logged: list[tuple[Any, ...]] = []
    monkeypatch.setattr(AccessLog, "write", lambda _self, *told: logged.append(told))
    full.client.post("/predict", json={"nodes": [1]}, headers={"x-request-id": "find-me"})
    ((name, method, route, code, seconds, sent, error),) = [one for one in logged if one[2] == "/predict"]
    assert (name, method, route, code, error) == ("find-me", "POST", "/predict", 429, "overloaded")
    assert 0 < seconds < 60
    assert sent > 50
    assert [counted(one) for one in series] == [one + 1 for one in before]
