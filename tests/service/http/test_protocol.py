"""What the protocol adds to uvicorn: one packet per answer, limits of time and size, requests that hide in others."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from service.http.protocol import HEAD_BYTES
from tests.service.http.raw import BODY, connect, is_closed, is_cut_off, read_response, request
from tests.service.serving import in_thread, refused, until

QUESTION = request()
UPGRADE = (
    b"connection: Upgrade, HTTP2-Settings",
    b"upgrade: h2c",
    b"http2-settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
)


def test_a_client_that_reads_nothing_is_hung_up_on_and_a_slow_one_is_not(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.http.protocol.UNREAD_SECONDS", 1.5)
    question = json.dumps({"nodes": [1] * 1000, "embeddings": True}).encode()
    with in_thread(store) as client, ExitStack() as opened:
        size = len(client.post("/predict", content=question, headers={"content-type": "application/json"}).content)
        silent, slow = (opened.enter_context(socket.socket()) for _ in range(2))
        for reader in (silent, slow):
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.settimeout(60)
            reader.connect(("127.0.0.1", client.base_url.port))
            reader.sendall(40 * request(question))  # pipelined: more than the system's buffers hold
        received, end = 0, b""
        while received < 40 * size:
            received += len(end := slow.recv(65_536))
            assert end, "a client that reads is not cut off"
            client.get("/health/live")
        until(lambda: is_cut_off(silent, b" "))


@pytest.mark.parametrize("sent", [b"", b"POST /predict HT", QUESTION + b"POST /predict HTTP/1.1\r\nhost:"])
def test_a_request_whose_head_does_not_come_is_not_waited_for(
    store: Path, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.http.protocol.HEAD_SECONDS", 0.5)
    with in_thread(store) as client, connect(client) as silent:
        silent.sendall(sent)
        answered = b""
        with suppress(ConnectionResetError):
            while more := silent.recv(65_536):
                answered += more
        assert answered.count(b"HTTP/1.1 200") == sent.count(QUESTION)


@pytest.mark.parametrize("piece", [b"x-more: yes\r\n", b"x" * 1000])
def test_a_head_without_end_is_refused(client: httpx.Client, piece: bytes) -> None:
    with connect(client) as caller:
        caller.sendall(b"POST /predict HTTP/1.1\r\nhost: x\r\nx-long: ")
        answered = b""
        with suppress(ConnectionError):
            for _ in range(8 * HEAD_BYTES // len(piece)):  # of the packet in which it begins nothing is counted
                caller.sendall(piece)
        with suppress(ConnectionError):
            while more := caller.recv(65_536):
                answered += more
    assert answered.startswith(b"HTTP/1.1 431 ")
    assert b'"code":"head_too_large"' in answered
    assert client.post("/predict", json={"nodes": [1]}, headers={"x-long": "x" * 30_000}).status_code == 200


def test_the_service_sends_head_and_body_together(client: httpx.Client) -> None:
    with connect(client) as caller:
        caller.sendall(request(BODY, b"content-type: application/json"))
        first = caller.recv(65536)
        assert first.startswith(b"HTTP/1.1 200")
        assert first.endswith(b"}]}")


@pytest.mark.parametrize("pieces", [1, 2, 20])
def test_an_upgrade_that_is_not_accepted_is_ignored(client: httpx.Client, pieces: int) -> None:
    """RFC 9110, 7.8. The body is the body of this request, in however many packets it comes."""
    whole = request(BODY, *UPGRADE)
    with connect(client) as caller:
        caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(2):
            size = -(-len(whole) // pieces)
            for start in range(0, len(whole), size):
                caller.sendall(whole[start : start + size])
                client.get("/health/live")  # so that the server has read this piece before the next one is sent
            head, answer = read_response(caller)
            assert head.startswith(b"HTTP/1.1 200")
            assert answer["predictions"][0]["node"] == 1


def test_no_request_hides_in_the_body_of_one_that_offers_an_upgrade(client: httpx.Client) -> None:
    """A proxy that forwards such headers takes these bytes for a body; they must not become a second answer."""
    hidden = request(b'{"nodes": [2]}')
    with connect(client) as caller:
        for parts in ([request(hidden, *UPGRADE)], [request(hidden, *UPGRADE)[: -len(hidden)], hidden]):
            for part in parts:
                caller.sendall(part)
                client.get("/health/live")
            assert read_response(caller)[1]["code"] == "not_json"
        caller.sendall(request(b'{"nodes": [3]}'))
        assert read_response(caller)[1]["predictions"][0]["node"] == 3, "nothing came in between"


def test_javas_own_client_is_answered(client: httpx.Client) -> None:
    java = shutil.which("java")
    if java is None:
        pytest.skip("NOT RUN: no Java here (apt-get install openjdk-17-jdk-headless)")
    source = Path(__file__).with_name("JavaClient.java")
    command = [java, str(source), str(client.base_url).rstrip("/")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
    assert [code for code, _ in lines] == ["200"] * 3
    assert [json.loads(body)["predictions"][0]["node"] for _, body in lines] == [0, 1, 2]


def test_connect_is_no_request(client: httpx.Client) -> None:
    with connect(client) as caller:
        caller.sendall(b"CONNECT x:443 HTTP/1.1\r\nhost: x\r\n\r\n")
        assert read_response(caller)[1]["code"] == "bad_http"
        assert is_closed(caller)


def test_a_request_without_a_host_is_refused(client: httpx.Client) -> None:
    with connect(client) as caller:
        caller.sendall(QUESTION.replace(b"host: x\r\n", b""))
        head, answer = read_response(caller)
        assert (head[:12], answer["code"]) == (b"HTTP/1.1 400", "bad_http")
        assert is_closed(caller)
    with connect(client) as caller:
        caller.sendall(QUESTION.replace(b"host: x\r\n", b"").replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert read_response(caller)[0].startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("target", "code"), [(b"http://x/health/live", b"200"), (b"http://x", b"200"), (b"http://x?a=1", b"200")]
)
def test_targets_in_absolute_form(client: httpx.Client, target: bytes, code: bytes) -> None:
    with connect(client) as caller:
        caller.sendall(b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % target)
        assert caller.recv(65_536).startswith(b"HTTP/1.1 " + code)


def test_every_answer_has_a_date(client: httpx.Client) -> None:
    for response in (client.get("/health/live"), client.post("/predict", json={"nodes": [1]}), client.get("/predict")):
        assert response.headers["date"].endswith(" GMT")


def test_who_waits_for_a_go_ahead_gets_it_or_a_refusal_and_the_end(store: Path) -> None:
    """Otherwise the client's next request would be taken for the body that it did not send."""
    with in_thread(store, api_keys=("a-key-of-sixteen",)) as client:
        expect = b"expect: 100-continue"
        with connect(client) as caller:
            caller.sendall(request(BODY, expect)[: -len(BODY)])
            head, answer = read_response(caller)
            assert (head[:12], answer["code"]) == (b"HTTP/1.1 401", "unauthorized")
            assert b"connection: close" in head
            assert is_closed(caller)
        with connect(client) as caller:
            caller.sendall(request(BODY, expect, b"authorization: Bearer a-key-of-sixteen")[: -len(BODY)])
            assert caller.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
            caller.sendall(BODY)
            assert read_response(caller)[1]["predictions"][0]["node"] == 1


def test_a_body_that_drips_in_after_its_answer_does_not_hold_the_connection(store: Path) -> None:
    with in_thread(store, api_keys=("a-key-of-sixteen",), body_seconds=0.5) as client, connect(client) as caller:
        caller.sendall(request(b" " * 1_000_000)[:-1_000_000])
        assert read_response(caller)[1]["code"] == "unauthorized"
        until(lambda: is_cut_off(caller, b" "))


def test_bytes_between_requests_do_not_hold_a_connection(store: Path) -> None:
    with in_thread(store) as client, connect(client) as caller:
        caller.sendall(QUESTION)
        read_response(caller)
        until(lambda: is_cut_off(caller, b"\r\n"))  # uvicorn keeps an idle connection for 5 s


def test_a_body_that_does_not_arrive_is_refused(store: Path) -> None:
    with in_thread(store, body_seconds=0.3) as client, connect(client) as caller:
        caller.sendall(QUESTION[:-3])
        head, answer = read_response(caller)
        assert (head[:12], answer["code"]) == (b"HTTP/1.1 408", "slow_body")
        assert is_closed(caller)


def test_connections_beyond_the_limit_are_refused_and_closed(store: Path) -> None:
    with in_thread(store, max_connections=3) as client, ExitStack() as opened:
        client.get("/health/live")
        held = [opened.enter_context(connect(client)) for _ in range(2)]
        with connect(client) as one_more:
            head, answer = read_response(one_more)
            assert (head[:12], answer["code"]) == (b"HTTP/1.1 503", "too_many_connections")
            assert is_closed(one_more)
        held[0].close()

        def accepted() -> bool:
            with connect(client) as another:
                another.sendall(QUESTION)
                return read_response(another)[0].startswith(b"HTTP/1.1 200")

        until(accepted)


def test_a_body_in_chunks_that_is_refused_is_dropped_and_a_bad_one_ends_the_connection(store: Path) -> None:
    with in_thread(store, api_keys=("a-key-of-sixteen",)) as client, connect(client) as caller:
        head = QUESTION[: -len(BODY)].replace(b"content-length: 14", b"transfer-encoding: chunked")
        for chunks in (b"5\r\nabcde\r\n0\r\n\r\n", b"no size\r\n"):
            caller.sendall(head)
            assert read_response(caller)[1]["code"] == "unauthorized"
            caller.sendall(chunks)
        assert read_response(caller)[1]["code"] == "bad_http"
        assert is_closed(caller)


def test_a_large_packet_is_not_taken_for_a_long_head(client: httpx.Client) -> None:
    with connect(client) as caller:
        caller.sendall(request(BODY + b" " * 200_000) + QUESTION[:20])
        assert read_response(caller)[0].startswith(b"HTTP/1.1 200")
        caller.sendall(QUESTION[20:])
        assert read_response(caller)[0].startswith(b"HTTP/1.1 200")


def test_an_error_of_ours_before_a_request_is_queued_is_not_blamed_on_the_client(
    store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("as if keys could not be compared")

    monkeypatch.setattr("service.http.security.Security.check", broken)
    with in_thread(store) as client:
        refused(client.post("/predict", json={"nodes": [1]}), 500, "internal")
    assert "as if keys could not be compared" in caplog.text
