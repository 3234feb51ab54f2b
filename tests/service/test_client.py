"""The client: what it asks, and how patiently. Servers are real; only the waiting is not, it is written down instead."""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import struct
import textwrap
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import MappingProxyType, SimpleNamespace
from typing import Any, get_type_hints

import httpx
import numpy as np
import pytest

import sgformer_client.client
from service.predict.questions import Question
from sgformer_client import AsyncClient, Client, ServiceError, new_node
from sgformer_client.client import EmbedOptions, PredictOptions

API_PAGE = Path(__file__).parent.parent.parent / "docs" / "api.md"
HANG_UP, RESET, PROXY = "hang up", "reset", "a page of a proxy, in another shape of errors"
Reply = tuple[int, Mapping[str, str]] | str
FINE: Reply = (200, {})


def busy(seconds: object, status: int = 429) -> Reply:
    return status, {"retry-after": str(seconds)}


class StandIn(HTTPServer):
    """Gives its replies in turn, the last one again and again. It listens from the start, or from `listen` on."""

    def __init__(self, *replies: Reply, listening: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), _Replying, bind_and_activate=False)
        self.replies, self.asked = list(replies), list[str]()
        self.server_bind()
        self.url = f"http://127.0.0.1:{self.server_port}"
        self._thread = Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        if listening:
            self.listen()

    def listen(self) -> None:
        self.server_activate()
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        if self._thread.ident is not None:
            self.shutdown()
            self._thread.join()
        self.server_close()


class _Replying(BaseHTTPRequestHandler):
    server: StandIn

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        replies = self.server.replies
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        if reply == RESET:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        elif reply == PROXY:
            self.send_error(502)
        elif not isinstance(reply, str):
            self.answer(*reply)

    def answer(self, status: int, headers: Mapping[str, str]) -> None:
        told = {"error": "busy", "code": "overloaded", "details": {}}
        answer = {"model": "m", "version": 1, "snapshot": "s", "predictions": []}  # to a question; the rest to /models
        answer |= dict.fromkeys(("serving", "failure", "probation", "rolled_back")) | {"versions": []}
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(json.dumps(answer if status == 200 else told).encode())

    def log_message(self, *_: object) -> None:
        pass


def predict(own: Any) -> Any:
    return own.predict([1])


def embed(own: Any) -> Any:
    return own.embed([1])


def models(own: Any) -> Any:
    return own.models()


def ask_at_once(url: str, what: Callable[[Any], Any] = predict, **settings: Any) -> Any:
    with Client(url, **settings) as own:
        return what(own)


def ask_and_await(url: str, what: Callable[[Any], Any] = predict, **settings: Any) -> Any:
    async def main() -> Any:
        async with AsyncClient(url, **settings) as own:
            return await what(own)

    return asyncio.run(main())


both = pytest.mark.parametrize("ask", [ask_at_once, ask_and_await])
broken = pytest.mark.parametrize(("reply", "error"), [(HANG_UP, httpx.RemoteProtocolError), (RESET, httpx.ReadError)])


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the client would have slept. Only its own sleep is replaced, not the server's; chance is the same each time."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("sgformer_client.client.time", SimpleNamespace(sleep=slept.append))
    monkeypatch.setattr("sgformer_client.client.asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr("sgformer_client.client.random", random.Random(3))  # noqa: S311  # no secret
    return slept


def document_example() -> str:
    return textwrap.dedent("\n".join(re.findall(r"^(?:    .*)?$", sgformer_client.client.__doc__ or "", re.MULTILINE)))


def page_example() -> str:
    section = API_PAGE.read_text().partition("## From Python")[2]
    return section.split("```")[1].partition("\n")[2].replace("[0.0] * 64", "[0.0] * 5")  # the tests' model is narrow


@pytest.mark.parametrize(("example", "line"), [(document_example, r"1 [xyz]\n"), (page_example, r"1 [xyz] exact\n")])
def test_the_examples_work_when_pasted(
    example: Callable[[], str], line: str, client: httpx.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    code = example().replace("http://127.0.0.1:8000", str(client.base_url))
    assert str(client.base_url) in code
    exec(compile(code, "pasted", "exec"), {})  # noqa: S102  # ours
    assert re.fullmatch(line, capsys.readouterr().out)


def test_the_options_are_the_fields_of_a_question() -> None:
    others = set(Question.model_fields) - {"nodes", "new_nodes"}
    assert set(get_type_hints(PredictOptions)) == others
    assert set(get_type_hints(EmbedOptions)) == others - {"embeddings", "probabilities", "top_k"}


def test_both_clients_answer_the_same(client: httpx.Client) -> None:
    url = str(client.base_url)
    asked = [new_node("a", [0.5, 1.0, -1.0, 0.0, 2.0], [0, 5]), new_node("b", {0: 0.5, 1: 1.0, 2: -1.0, 4: 2.0}, [0, 5])]
    answer, array, served = (ask_at_once(url, what) for what in three_questions(asked))
    again, array_again, served_again = (ask_and_await(url, what) for what in three_questions(asked))
    assert [one.node for one in answer.predictions] == [3, "a", "b"]
    np.testing.assert_allclose(answer.predictions[1].probabilities, answer.predictions[2].probabilities, atol=1e-6)
    assert served.serving.version == 1
    assert array.shape == (3, 8)
    assert array.dtype == np.float32
    assert (again, served_again.serving) == (answer, served.serving)
    np.testing.assert_array_equal(array, array_again)


def three_questions(new: list[dict[str, Any]]) -> list[Callable[[Any], Any]]:
    return [lambda own: own.predict([3], new), lambda own: own.embed([3], new), models]


@both
def test_an_error_of_the_service_is_raised_and_not_asked_again(ask: Any, client: httpx.Client, waits: list[float]) -> None:
    with pytest.raises(ServiceError, match="unknown_node") as caught:
        ask(str(client.base_url), lambda own: own.predict([999]))
    assert (caught.value.status, caught.value.code, caught.value.retry_after) == (404, "unknown_node", None)
    assert waits == []


@pytest.mark.parametrize(
    "nodes", [np.array([0, 5]), np.arange(0, 6, 5), np.arange(9)[::5], range(0, 6, 5), np.int32([0, 5])]
)
@both
def test_nodes_may_come_from_numpy(ask: Any, nodes: Iterable[int], client: httpx.Client) -> None:
    answer = ask(str(client.base_url), lambda own: own.predict(nodes))
    assert [one.node for one in answer.predictions] == [0, 5]


def test_everything_in_a_question_may_come_from_numpy(client: httpx.Client, features: list[float]) -> None:
    plain = [new_node(1, features, [0, 5]), new_node("b", dict(enumerate(features)), [3])]
    own_kind = [
        new_node(np.int64(1), np.array(features), np.array([0, 5])),
        new_node(np.str_("b"), dict(zip(np.arange(5), np.array(features), strict=True)), [np.uint8(3)]),
    ]
    with Client(str(client.base_url)) as own:
        expected = own.predict([2], plain, joint=True, edges=[(1, "b")], top_k=2)
        frozen_mappings = map(MappingProxyType, own_kind)
        edges = [(np.int64(1), np.str_("b"))]
        assert own.predict(np.array([2]), frozen_mappings, joint=np.True_, edges=edges, top_k=np.int64(2)) == expected
        assert own.predict([2], own_kind, joint=True, edges=np.array(edges, dtype=object), top_k=2) == expected
        with pytest.raises(ServiceError, match="invalid"):
            own.predict([], [new_node("a", [np.nan] * 5)])
        with pytest.raises(TypeError):
            own.predict(object())


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("what", [predict, models])
@both
def test_a_client_comes_back_no_sooner_than_it_is_told(ask: Any, what: Any, status: int, waits: list[float]) -> None:
    with StandIn(busy(2, status), busy(3, status), FINE) as server:
        assert ask(server.url, what)
    assert len(server.asked) == 3
    assert 2 < waits[0] <= 4
    assert 3 < waits[1] <= 5


@both
def test_those_who_are_refused_together_do_not_come_back_together(ask: Any, waits: list[float]) -> None:
    with StandIn(busy(1)) as server:
        for _ in range(20):
            with pytest.raises(ServiceError):
                ask(server.url, retries=1)
    assert len(set(waits)) == 20
    assert 1 <= min(waits) < 1.2
    assert 1.8 < max(waits) <= 2


@pytest.mark.parametrize("said", ["0", "Fri, 31 Dec 1999 23:59:59 GMT"])
def test_without_a_number_of_seconds_the_waits_double_up_to_the_longest(said: str, waits: list[float]) -> None:
    with StandIn(busy(said)) as server, pytest.raises(ServiceError):
        ask_at_once(server.url, retries=30, longest_wait=0.8)
    for wait, least in zip(waits, [0.05, 0.1, 0.2, *[0.4] * 27], strict=True):
        assert least <= wait <= 2 * least
    assert len(set(waits)) == 30


def test_the_longest_wait_is_never_exceeded(waits: list[float]) -> None:
    with StandIn(busy(4)) as server, pytest.raises(ServiceError):
        ask_at_once(server.url, retries=20, longest_wait=5)
    assert len(set(waits)) == 20
    assert 4 < min(waits) < max(waits) <= 5


@pytest.mark.parametrize("seconds", ["5", "3600", "9" * 400])
def test_a_client_that_would_have_to_wait_longer_does_not_wait(seconds: str, waits: list[float]) -> None:
    with StandIn(busy(seconds), FINE) as server, pytest.raises(ServiceError) as caught:
        ask_at_once(server.url, longest_wait=5)
    assert caught.value.retry_after == float(seconds)
    assert (len(server.asked), waits) == (1, [])


@pytest.mark.parametrize("retries", [0, 1, 3])
@pytest.mark.parametrize("what", [predict, embed, models])
@both
def test_a_client_gives_up_after_its_retries(ask: Any, what: Any, retries: int, waits: list[float]) -> None:
    with StandIn(busy(1)) as server, pytest.raises(ServiceError, match="busy") as caught:
        ask(server.url, what, retries=retries)
    assert (caught.value.status, caught.value.code, caught.value.retry_after) == (429, "overloaded", 1)
    assert (len(server.asked), len(waits)) == (retries + 1, retries)


@broken
@pytest.mark.parametrize("what", [predict, models])
@both
def test_a_connection_that_breaks_is_made_again(ask: Any, what: Any, reply: Reply, error: Any, waits: list[float]) -> None:
    with StandIn(reply, reply, FINE) as server:
        assert ask(server.url, what)
    assert len(server.asked) == 3
    assert 0.05 <= waits[0] <= 0.1 <= waits[1] <= 0.2


@broken
@both
def test_what_breaks_every_time_is_raised_as_it_is(ask: Any, reply: Reply, error: Any, waits: list[float]) -> None:
    with StandIn(reply) as server, pytest.raises(error):
        ask(server.url, retries=2)
    assert (len(server.asked), len(waits)) == (3, 2)


def test_a_service_that_restarts_is_asked_when_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with StandIn(FINE, listening=False) as server:
        with pytest.raises(httpx.ConnectError):
            ask_at_once(server.url, retries=0)
        monkeypatch.setattr("sgformer_client.client.time", SimpleNamespace(sleep=lambda _: server.listen()))
        assert ask_at_once(server.url).version == 1
    assert len(server.asked) == 1


@both
def test_what_timed_out_is_not_asked_again(ask: Any, waits: list[float]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(httpx.ReadTimeout):
        ask(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=httpx.Timeout(30, read=0.05))
    assert waits == []


def test_a_refusal_of_somebody_else_is_told_as_it_is(waits: list[float]) -> None:
    with StandIn(PROXY) as server, pytest.raises(ServiceError, match="unknown") as caught:
        ask_at_once(server.url)
    assert (caught.value.status, caught.value.code, len(server.asked)) == (502, "unknown", 1)


def test_a_key_is_shown() -> None:
    with Client("http://nowhere", key="secret") as own:
        assert own._http.headers["authorization"] == "Bearer secret"
