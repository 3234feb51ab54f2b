"""The client: its requests and its retries. The servers are real; the waits are recorded instead of slept."""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import MappingProxyType, SimpleNamespace
from typing import Any, get_type_hints

import httpx
import numpy as np
import pytest
import scipy.sparse

import sgformer_client.client
from service.predict.questions import Question
from sgformer_client import AsyncClient, Client, ServiceError, new_node
from sgformer_client.client import EmbedOptions, PredictOptions
from tests.service.named import FAN, IDS

API_PAGE = Path(__file__).parent.parent.parent / "docs" / "api.md"
HANG_UP, RESET, PROXY = "hang up", "reset", "error page of a proxy"
Reply = tuple[int, Mapping[str, str]] | str
FINE: Reply = (200, {})


def busy(seconds: object, status: int = 429) -> Reply:
    return status, {"retry-after": str(seconds)}


class FakeService(HTTPServer):
    """Sends its replies in order and repeats the last one. It listens at once, or after `listen` is called."""

    def __init__(self, *replies: Reply, listening: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), _Handler, bind_and_activate=False)
        self.replies, self.requests = list(replies), list[str]()
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


class _Handler(BaseHTTPRequestHandler):
    server: FakeService

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
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
        error = {"error": "busy", "code": "overloaded", "details": {}}
        answer = {
            "model": "m",
            "version": 1,
            "snapshot": "s",
            "predictions": [],
        }  # for /predict; the next fields for /models
        answer |= dict.fromkeys(("serving", "failure", "probation", "rolled_back")) | {"versions": []}
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(json.dumps(answer if status == 200 else error).encode())

    def log_message(self, *_: object) -> None:
        pass


def predict(client: Any) -> Any:
    return client.predict([1])


def embed(client: Any) -> Any:
    return client.embed([1])


def models(client: Any) -> Any:
    return client.models()


def call_sync(url: str, method: Callable[[Any], Any] = predict, **settings: Any) -> Any:
    with Client(url, **settings) as client:
        return method(client)


def call_async(url: str, method: Callable[[Any], Any] = predict, **settings: Any) -> Any:
    async def main() -> Any:
        async with AsyncClient(url, **settings) as client:
            return await method(client)

    return asyncio.run(main())


both = pytest.mark.parametrize("call", [call_sync, call_async])
broken = pytest.mark.parametrize(("reply", "error"), [(HANG_UP, httpx.RemoteProtocolError), (RESET, httpx.ReadError)])


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits of the client, recorded instead of slept. The random numbers are the same in each run."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("sgformer_client.client.time", SimpleNamespace(sleep=slept.append))
    monkeypatch.setattr("sgformer_client.client.asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr("sgformer_client.client.random", random.Random(3))  # noqa: S311  # not a secret
    return slept


def docstring_example() -> str:
    return textwrap.dedent("\n".join(re.findall(r"^(?:    .*)?$", sgformer_client.client.__doc__ or "", re.MULTILINE)))


def page_example() -> str:
    section = API_PAGE.read_text().partition("## From Python")[2]
    return section.split("```")[1].partition("\n")[2].replace("[0.0] * 64", "[0.0] * 5")  # the tests' model is narrow


@pytest.mark.parametrize(("example", "line"), [(docstring_example, r"1 [xyz]\n"), (page_example, r"1 [xyz] exact\n")])
def test_the_examples_work_when_pasted(
    example: Callable[[], str], line: str, client: httpx.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    code = example().replace("http://127.0.0.1:8000", str(client.base_url))
    assert str(client.base_url) in code
    exec(compile(code, "pasted", "exec"), {})  # noqa: S102  # ours
    assert re.fullmatch(line, capsys.readouterr().out)


def test_the_options_are_the_fields_of_a_request() -> None:
    others = set(Question.model_fields) - {"nodes", "new_nodes"}
    assert set(get_type_hints(PredictOptions)) == others
    assert set(get_type_hints(EmbedOptions)) == others - {"embeddings", "probabilities", "top_k", "on_error"}


def test_both_clients_return_the_same(client: httpx.Client) -> None:
    url = str(client.base_url)
    new = [new_node("a", [0.5, 1.0, -1.0, 0.0, 2.0], [0, 5]), new_node("b", {0: 0.5, 1: 1.0, 2: -1.0, 4: 2.0}, [0, 5])]
    answer, array, served = (call_sync(url, method) for method in three_methods(new))
    again, array_again, served_again = (call_async(url, method) for method in three_methods(new))
    assert [prediction.node for prediction in answer.predictions] == [3, "a", "b"]
    np.testing.assert_allclose(answer.predictions[1].probabilities, answer.predictions[2].probabilities, atol=1e-6)
    assert served.serving.version == 1
    assert array.shape == (3, 8)
    assert array.dtype == np.float32
    assert (again, served_again.serving) == (answer, served.serving)
    np.testing.assert_array_equal(array, array_again)


@both
def test_features_classes_and_nodes_by_name(call: Any, named_client: httpx.Client) -> None:
    url = str(named_client.base_url)
    features, classes = call(url, lambda client: client.features()), call(url, lambda client: client.classes())
    nodes = [call(url, lambda client, node=node: client.node(node, limit=2)) for node in IDS[:8]]
    assert [feature.name for feature in features.features] == list(FAN)
    assert [entry.class_name for entry in classes.classes] == ["loud", "50%", 'so "so"']
    assert [node.node for node in nodes] == IDS[:8]
    assert (nodes[0].degree, nodes[0].neighbors, nodes[0].features["days"]) == (23, IDS[1:3], 0)
    with pytest.raises(ServiceError, match="unknown_node"):
        call(url, lambda client: client.node("nobody"))


@both
def test_a_request_by_name_with_errors_per_item(call: Any, named_client: httpx.Client) -> None:
    own_kinds = FAN | {"joined": date(2024, 1, 31), "partner": np.True_, "days": np.float32(100), "genre": np.str_("rock")}
    new = [new_node(0, FAN), new_node(1, MappingProxyType(own_kinds)), new_node(2, FAN | {"genre": "rok"})]
    answer = call(
        str(named_client.base_url),
        lambda client: client.predict(["nobody"], new, on_error="per_item", probabilities="by_class"),
    )
    nobody, first, second, third = answer.predictions
    assert (nobody.code, nobody.exactness, third.code) == ("unknown_node", None, "invalid")
    assert "did you mean 'rock'?" in third.error
    assert set(first.probabilities) == {"loud", "50%", 'so "so"'}
    assert (first.probabilities, first.error) == (second.probabilities, None)


def three_methods(new: list[dict[str, Any]]) -> list[Callable[[Any], Any]]:
    return [lambda client: client.predict([3], new), lambda client: client.embed([3], new), models]


@both
def test_an_error_of_the_service_is_raised_and_not_retried(call: Any, client: httpx.Client, waits: list[float]) -> None:
    with pytest.raises(ServiceError, match="unknown_node") as caught:
        call(str(client.base_url), lambda client: client.predict([999]))
    assert (caught.value.status, caught.value.code, caught.value.retry_after) == (404, "unknown_node", None)
    assert waits == []


@pytest.mark.parametrize(
    "nodes", [np.array([0, 5]), np.arange(0, 6, 5), np.arange(9)[::5], range(0, 6, 5), np.int32([0, 5])]
)
@both
def test_nodes_may_come_from_numpy(call: Any, nodes: Iterable[int], client: httpx.Client) -> None:
    answer = call(str(client.base_url), lambda client: client.predict(nodes))
    assert [prediction.node for prediction in answer.predictions] == [0, 5]


def test_every_field_of_a_request_may_come_from_numpy(client: httpx.Client, features: list[float]) -> None:
    plain = [new_node(1, features, [0, 5]), new_node("b", dict(enumerate(features)), [3])]
    own_kind = [
        new_node(np.int64(1), np.array(features), np.array([0, 5])),
        new_node(np.str_("b"), dict(zip(np.arange(5), np.array(features), strict=True)), [np.uint8(3)]),
    ]
    with Client(str(client.base_url)) as typed_client:
        expected = typed_client.predict([2], plain, joint=True, edges=[(1, "b")], top_k=2)
        frozen_mappings = map(MappingProxyType, own_kind)
        edges = [(np.int64(1), np.str_("b"))]
        assert (
            typed_client.predict(np.array([2]), frozen_mappings, joint=np.True_, edges=edges, top_k=np.int64(2)) == expected
        )
        assert typed_client.predict([2], own_kind, joint=True, edges=np.array(edges, dtype=object), top_k=2) == expected
        with pytest.raises(ServiceError, match="invalid"):
            typed_client.predict([], [new_node("a", [np.nan] * 5)])
        with pytest.raises(TypeError):
            typed_client.predict(object())


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("method", [predict, models])
@both
def test_a_client_waits_at_least_retry_after(call: Any, method: Any, status: int, waits: list[float]) -> None:
    with FakeService(busy(2, status), busy(3, status), FINE) as server:
        assert call(server.url, method)
    assert len(server.requests) == 3
    assert 2 < waits[0] <= 4
    assert 3 < waits[1] <= 5


@both
def test_clients_refused_together_retry_at_different_times(call: Any, waits: list[float]) -> None:
    with FakeService(busy(1)) as server:
        for _ in range(20):
            with pytest.raises(ServiceError):
                call(server.url, retries=1)
    assert len(set(waits)) == 20
    assert 1 <= min(waits) < 1.2
    assert 1.8 < max(waits) <= 2


@pytest.mark.parametrize("retry_after", ["0", "Fri, 31 Dec 1999 23:59:59 GMT"])
def test_without_a_number_of_seconds_the_waits_double_up_to_the_longest(retry_after: str, waits: list[float]) -> None:
    with FakeService(busy(retry_after)) as server, pytest.raises(ServiceError):
        call_sync(server.url, retries=30, longest_wait=0.8)
    for wait, least in zip(waits, [0.05, 0.1, 0.2, *[0.4] * 27], strict=True):
        assert least <= wait <= 2 * least
    assert len(set(waits)) == 30


def test_the_longest_wait_is_never_exceeded(waits: list[float]) -> None:
    with FakeService(busy(4)) as server, pytest.raises(ServiceError):
        call_sync(server.url, retries=20, longest_wait=5)
    assert len(set(waits)) == 20
    assert 4 < min(waits) < max(waits) <= 5


@pytest.mark.parametrize("seconds", ["5", "3600", "9" * 400])
def test_a_retry_after_beyond_the_longest_wait_is_raised_at_once(seconds: str, waits: list[float]) -> None:
    with FakeService(busy(seconds), FINE) as server, pytest.raises(ServiceError) as caught:
        call_sync(server.url, longest_wait=5)
    assert caught.value.retry_after == float(seconds)
    assert (len(server.requests), waits) == (1, [])


@pytest.mark.parametrize("retries", [0, 1, 3])
@pytest.mark.parametrize("method", [predict, embed, models])
@both
def test_a_client_gives_up_after_its_retries(call: Any, method: Any, retries: int, waits: list[float]) -> None:
    with FakeService(busy(1)) as server, pytest.raises(ServiceError, match="busy") as caught:
        call(server.url, method, retries=retries)
    assert (caught.value.status, caught.value.code, caught.value.retry_after) == (429, "overloaded", 1)
    assert (len(server.requests), len(waits)) == (retries + 1, retries)


@broken
@pytest.mark.parametrize("method", [predict, models])
@both
def test_a_broken_connection_is_retried(call: Any, method: Any, reply: Reply, error: Any, waits: list[float]) -> None:
    with FakeService(reply, reply, FINE) as server:
        assert call(server.url, method)
    assert len(server.requests) == 3
    assert 0.05 <= waits[0] <= 0.1 <= waits[1] <= 0.2


@broken
@both
def test_a_connection_that_breaks_every_time_raises_the_error_of_httpx(
    call: Any, reply: Reply, error: Any, waits: list[float]
) -> None:
    with FakeService(reply) as server, pytest.raises(error):
        call(server.url, retries=2)
    assert (len(server.requests), len(waits)) == (3, 2)


def test_a_request_is_retried_while_the_service_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeService(FINE, listening=False) as server:
        with pytest.raises(httpx.ConnectError):
            call_sync(server.url, retries=0)
        monkeypatch.setattr("sgformer_client.client.time", SimpleNamespace(sleep=lambda _: server.listen()))
        assert call_sync(server.url).version == 1
    assert len(server.requests) == 1


@both
def test_a_timeout_is_not_retried(call: Any, waits: list[float]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(httpx.ReadTimeout):
        call(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=httpx.Timeout(30, read=0.05))
    assert waits == []


def test_an_error_of_a_proxy_is_raised_with_its_text(waits: list[float]) -> None:
    with FakeService(PROXY) as server, pytest.raises(ServiceError, match="unknown") as caught:
        call_sync(server.url)
    assert (caught.value.status, caught.value.code, len(server.requests)) == (502, "unknown", 1)


def test_a_key_is_sent() -> None:
    with Client("http://nowhere", key="secret") as typed_client:
        assert typed_client._http.headers["authorization"] == "Bearer secret"


def test_folders_named_like_our_packages_do_not_disturb_the_client(tmp_path: Path) -> None:
    for package in ("service", "training"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise ImportError('a package of the user')")
    code = (
        "import sys, sgformer_client; print(sorted({'service', 'training', 'model_store', 'sgformer'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_an_address_without_a_scheme_is_refused(kind: type[Client] | type[AsyncClient]) -> None:
    with pytest.raises(
        ValueError, match=re.escape("the address 'localhost:8000' does not begin with http:// or https://, ")
    ):
        kind("localhost:8000")


def test_features_of_a_new_node_may_have_the_forms_of_other_libraries() -> None:
    sparse_form = {"indices": [1, 3], "values": [2.0, 0.5]}
    row = np.array([0, 2, 0, 0.5])
    for features in (scipy.sparse.csr_matrix(row), scipy.sparse.coo_array(row), {1: 2, 3: 0.5}, sparse_form):
        assert new_node("a", features)["features"] == sparse_form
    for features in (row, row[None], row.tolist(), row.astype(np.float32)):
        assert new_node("a", features)["features"] == [0.0, 2.0, 0.0, 0.5]
    assert new_node("a", {"age": 3, "genre": "jazz"})["features"] == {"age": 3, "genre": "jazz"}
    for features in (np.ones((2, 4)), scipy.sparse.csr_matrix(np.ones((2, 4)))):
        with pytest.raises(ValueError, match=r"features have shape \(2, 4\), expected one row per new node"):
            new_node("a", features)


@pytest.mark.parametrize(
    ("features", "text"), [("jazz", "'jazz'"), ([[1, 2]], "[[1, 2]]"), ([1, None], "[1, None]"), (3, "3")]
)
def test_features_that_are_no_row_of_numbers_are_refused(features: Any, text: str) -> None:
    expected = f"features are {text}, expected one row of numbers, or a mapping from names to values"
    with pytest.raises(TypeError, match=f"^{re.escape(expected)}$"):
        new_node("a", features)


def test_ids_that_are_not_a_list_are_refused() -> None:
    with pytest.raises(TypeError, match=re.escape("neighbors are 'bob', expected a list of ids: ['bob']")):
        new_node("a", [1.0], neighbors="bob")
    with Client("http://127.0.0.1:1") as client:
        for nodes in ("bob", 7):
            with pytest.raises(TypeError, match=r"nodes are .*, expected a list of ids"):
                client.predict(nodes)  # type: ignore[arg-type]
