"""Which requests run, wait and are refused."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import httpx
import pytest

from model_store import Store
from service.admission import PATIENCE, WINDOW_SECONDS, Admission, Lane, Slot
from service.errors import Refusal
from service.http.gateway import Gateway
from service.predict.predictor import Answer, Predictor
from service.settings import Settings
from service.telemetry.metrics import Metrics
from tests.model_store.samples import small_contents
from tests.service.http import hurried
from tests.service.http.raw import BODY, connect, is_closed, read_response, readable, request
from tests.service.serving import in_processes, in_thread, refused, until

LIMIT, BOUND, SERVICE_SECONDS = 4, 0.1, 0.004
CAPACITY = LIMIT / SERVICE_SECONDS
"""Requests per second of the simulated lane: 1,000."""


class Simulation:
    """A lane whose requests take SERVICE_SECONDS each, under a clock that only moves when nothing is left to do."""

    def __init__(self) -> None:
        self.lane = Lane(LIMIT, BOUND, Metrics())
        self.answered: list[tuple[float, float]] = []
        """When each was answered, and how long after it was sent."""
        self.refused: list[tuple[float, float]] = []

    async def send(self, connection: SimpleNamespace | None = None) -> bool:
        """True if the request is answered, False if it is refused."""
        loop = asyncio.get_running_loop()
        start, sent = loop.time(), Sent(connection)
        self.lane.arrive(sent)
        found = await sent.decided
        if isinstance(found, Slot):
            await asyncio.sleep(SERVICE_SECONDS)
            found.release()
        results = self.answered if isinstance(found, Slot) else self.refused
        results.append((loop.time(), loop.time() - start))
        return isinstance(found, Slot)

    async def closed_loop(self, clients: int, seconds: float) -> None:
        """Every client sends its next request at once, whatever became of the last one."""
        end = asyncio.get_running_loop().time() + seconds

        async def client() -> None:
            connection = new_connection()
            while asyncio.get_running_loop().time() < end:
                await self.send(connection)

        await asyncio.gather(*(client() for _ in range(clients)))

    async def open_loop(self, rate: float, seconds: float) -> None:
        sent = []
        for _ in range(round(rate * seconds)):
            sent.append(asyncio.create_task(self.send()))
            await asyncio.sleep(1 / rate)
        await asyncio.gather(*sent)

    async def pool(self, connections: int, rate: float, seconds: float) -> list[tuple[float, float]]:
        """Sends at a constant rate over a fixed number of connections. Returns when each request was due, and how long it
        waited for a connection.
        """
        loop, idle, waits = asyncio.get_running_loop(), asyncio.Queue[SimpleNamespace](), list[tuple[float, float]]()
        for _ in range(connections):
            idle.put_nowait(new_connection())

        async def caller(due: float) -> None:
            connection = await idle.get()
            waits.append((due, loop.time() - due))
            await self.send(connection)
            idle.put_nowait(connection)

        callers = []
        for _ in range(round(rate * seconds)):
            callers.append(asyncio.create_task(caller(loop.time())))
            await asyncio.sleep(1 / rate)
        await asyncio.gather(*callers)
        return waits

    def goodput(self, start: float, end: float) -> float:
        return sum(start <= at < end for at, _ in self.answered) / (end - start)

    def p99(self, start: float, end: float) -> float:
        took = sorted(seconds for at, seconds in self.answered if start <= at < end)
        return took[int(0.99 * len(took))]


def new_connection() -> SimpleNamespace:
    return SimpleNamespace(loop=asyncio.get_running_loop())


class Sent:
    arrived = 0.0
    is_gone = is_refused = False

    def __init__(self, connection: SimpleNamespace | None = None) -> None:
        self.connection = connection or new_connection()
        self.decided: asyncio.Future[Slot | Refusal] = self.connection.loop.create_future()

    def start(self, slot: Slot) -> None:
        self.decided.set_result(slot)

    def refuse(self, refusal: Refusal) -> None:
        self.decided.set_result(refusal)


def test_a_request_runs_at_once_while_there_is_a_place_and_later_ones_run_in_order() -> None:
    async def main() -> None:
        lane, sent = Lane(2, 10.0, Metrics()), [Sent() for _ in range(5)]
        for one in sent:
            lane.arrive(one)
        assert [one.decided.done() for one in sent] == [True, True, False, False, False]
        sent[3].is_gone = True
        for one in (sent[0], sent[1]):
            slot = one.decided.result()
            assert isinstance(slot, Slot)
            slot.release()
            slot.release()  # a second time, without effect
        await asyncio.sleep(0)
        assert [one.decided.done() for one in sent] == [True, True, True, False, True], "the client of the fourth has gone"
        assert lane.depth == 2

    hurried.run(main())


@pytest.mark.parametrize("clients", [5, 25, 80])
def test_clients_whose_work_fits_the_bound_are_all_answered_however_many_they_are(clients: int) -> None:
    """Closed loop: 80 clients are 80 ms of work, and the bound is 100 ms."""

    async def main() -> None:
        simulation = Simulation()
        await simulation.closed_loop(clients, 3.0)
        assert simulation.refused == []
        assert simulation.goodput(1.0, 3.0) == pytest.approx(CAPACITY, rel=0.02)
        assert simulation.p99(1.0, 3.0) <= 2 * clients / CAPACITY

    hurried.run(main())


def test_clients_beyond_the_bound_cost_few_refusals_and_no_goodput_and_leave_no_trace() -> None:
    """Refusals that are sent at once, to clients that retry at once, would be most of what a server does."""

    async def main() -> None:
        simulation = Simulation()
        await simulation.closed_loop(1000, 3.0)
        assert simulation.refused
        assert simulation.goodput(1.0, 3.0) == pytest.approx(CAPACITY, rel=0.02)
        most = 1000 / (PATIENCE * BOUND)
        assert len([at for at, _ in simulation.refused if 1.0 <= at < 3.0]) / 2.0 <= 1.1 * most
        await asyncio.sleep(1.0)
        start = asyncio.get_running_loop().time()
        refused_before = len(simulation.refused)
        await simulation.closed_loop(80, 2.0)
        assert len(simulation.refused) == refused_before
        assert simulation.goodput(start + 0.1, start + 2.0) == pytest.approx(CAPACITY, rel=0.02)

    hurried.run(main())


@pytest.mark.parametrize("ratio", [1.2, 1.6, 2.0, 3.0])
def test_in_an_overload_answers_and_refusals_are_quick(ratio: float) -> None:
    """Open loop, each request on a connection that was not refused before. With a long queue, every answer would wait."""

    async def main() -> None:
        simulation = Simulation()
        await simulation.open_loop(ratio * CAPACITY, 5.0)
        assert simulation.goodput(1.0, 5.0) == pytest.approx(CAPACITY, rel=0.02)
        assert simulation.p99(1.0, 5.0) <= 6 * SERVICE_SECONDS
        waited = [took for at, took in simulation.refused if at >= 1.0]
        assert sorted(waited)[int(0.99 * len(waited))] == 0.0
        assert max(waited) <= PATIENCE * BOUND + 2 * WINDOW_SECONDS

    hurried.run(main())


@pytest.mark.parametrize("connections", [150, 300, 1000])
def test_an_overload_does_not_hold_the_connections_of_a_pool(connections: int) -> None:
    """A pool gives a connection to the next caller right after a refusal. This is no retry, and is refused at once."""

    async def main() -> None:
        simulation = Simulation()
        waits = await simulation.pool(connections, 2 * CAPACITY, 4.0)
        assert simulation.goodput(1.0, 4.0) == pytest.approx(CAPACITY, rel=0.02)
        assert simulation.p99(1.0, 4.0) <= 6 * SERVICE_SECONDS
        assert max(wait for due, wait in waits if due >= 1.0) == 0.0

    hurried.run(main())


def test_a_key_may_send_so_many_requests_per_second() -> None:
    async def main() -> None:
        admission = Admission(Settings(key_rate=3), Metrics())

        def allowed(key: str) -> bool:
            try:
                admission.check_rate(key)
            except Refusal:
                return False
            return True

        assert [allowed("a") for _ in range(5)] == [True, True, True, False, False]
        assert allowed("b"), "each key has its own"
        await asyncio.sleep(0.4)
        assert [allowed("a") for _ in range(2)] == [True, False]
        await asyncio.sleep(60)
        assert [allowed("a") for _ in range(4)] == [True, True, True, False], "nothing is saved up"
        unlimited = Admission(Settings(), Metrics())
        for _ in range(1000):
            unlimited.check_rate("a")

    hurried.run(main())


def test_the_rate_of_a_key_over_http(store: Path) -> None:
    keys = "first-key-of-sixteen", "second-key-of-sixteen"
    with in_thread(store, api_keys=keys, key_rate=1) as client:

        def codes(key: str, count: int) -> Counter[int]:
            headers = {"authorization": f"Bearer {key}"}
            return Counter(client.post("/predict", json={"nodes": [1]}, headers=headers).status_code for _ in range(count))

        assert codes(keys[0], 20)[429] > 0
        assert codes(keys[1], 1) == {200: 1}
        assert 'sgf_shed_total{reason="rate"}' in client.get("/metrics").text


class Full(NamedTuple):
    client: httpx.Client
    release: threading.Event
    """Set: the request that holds the only slot is answered."""
    called: list[str]
    """Paths of the requests that reached the application."""


@pytest.fixture
def full(store: Path) -> Iterator[Full]:
    """A service with one slot, which is taken. Other requests are refused after a moment."""
    holding, release, called = threading.Event(), threading.Event(), []
    answer, start = Predictor.answer, Gateway.answer

    async def slowly(self: Predictor, *arguments: Any) -> Answer:
        holding.set()
        while not release.is_set():
            await asyncio.sleep(0.005)
        return await answer(self, *arguments)

    async def counted(self: Gateway, request: Any) -> None:
        called.append(request.path)
        await start(self, request)

    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(Predictor, "answer", slowly)
        patch.setattr(Gateway, "answer", counted)
        patch.setattr("service.admission.ANSWER_LIMIT", 1)
        client = stack.enter_context(in_thread(store, max_queue_seconds=0.01))
        first = threading.Thread(target=lambda: client.post("/predict", json={"nodes": [1]}))
        first.start()
        assert holding.wait(60)
        called.clear()
        yield Full(client, release, called)
        release.set()
        first.join(timeout=60)


def test_a_refusal_has_the_shape_of_all_errors_and_costs_no_task(full: Full) -> None:
    for path in ("/predict", "/embed"):
        response = full.client.post(path, json={"nodes": [1]}, headers={"x-request-id": "find-me"})
        assert refused(response, 429, "overloaded").startswith("overloaded: 2 requests wait or run, and this one has waited")
        assert (response.headers["retry-after"], response.headers["x-request-id"]) == ("1", "find-me")
        assert response.headers["content-type"] == "application/json"
    assert full.called == []


def test_the_connection_of_a_refused_request_is_kept(full: Full) -> None:
    with connect(full.client) as caller:
        for body in (BODY, b"x" * 1_000_000):
            caller.sendall(request(body))
            assert read_response(caller)[1]["code"] == "overloaded"
        full.release.set()
        until(lambda: full.client.post("/predict", json={"nodes": [1]}).status_code == 200)
        caller.sendall(request())
        assert read_response(caller)[1]["predictions"][0]["node"] == 1


def test_pipelined_requests_are_refused_one_after_another_in_order(full: Full) -> None:
    with connect(full.client) as caller:
        caller.sendall(b"".join(request(BODY, b"x-request-id: %d" % number) for number in range(3)))
        for number in range(3):
            head, content = read_response(caller)
            assert content["code"] == "overloaded"
            assert head.endswith(b"x-request-id: %d" % number)
    assert full.called == []


@pytest.mark.parametrize(("more", "version"), [([b"connection: close"], b"1.1"), ([], b"1.0")])
def test_a_client_that_keeps_no_connections_gets_its_refusal_and_the_end(
    full: Full, more: list[bytes], version: bytes
) -> None:
    with connect(full.client) as caller:
        caller.sendall(request(BODY, *more, version=version))
        assert read_response(caller)[0].startswith(b"HTTP/1.1 429")
        assert is_closed(caller)


def test_pages_and_health_do_not_wait_behind_answers(full: Full) -> None:
    assert full.client.get("/models").status_code == 200
    assert full.client.get("/health/ready").status_code == 200
    assert refused(full.client.get("/predict"), 405, "method_not_allowed")


def test_a_refusal_is_counted_and_a_client_that_leaves_the_queue_is_not_answered(full: Full) -> None:
    def counted(series: str) -> float:
        return float(full.client.get("/metrics").text.partition(f"\n{series} ")[2].partition("\n")[0] or 0)

    full.client.post("/predict", json={"nodes": [1]})
    until(lambda: counted('sgf_shed_total{reason="queue"}') == 1)
    assert counted('sgf_requests_total{code="429",route="/predict"}') == 1
    with connect(full.client) as caller:
        caller.sendall(request())
    until(lambda: counted("sgf_queue_depth") == 1)
    full.release.set()
    until(lambda: counted("sgf_queue_depth") == 0)
    assert full.called.count("/predict") == 0


def test_of_complete_requests_that_wait_the_largest_are_refused_once(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are refused while they wait, and are not answered a second time when their turn comes."""
    go, answer = threading.Event(), Predictor.answer

    async def slowly(self: Predictor, *arguments: Any) -> Answer:
        while not go.is_set():
            await asyncio.sleep(0.005)
        return await answer(self, *arguments)

    monkeypatch.setattr(Predictor, "answer", slowly)
    monkeypatch.setattr("service.admission.ANSWER_LIMIT", 1)
    with in_thread(store, max_buffer_bytes=10_000_000, max_queue_seconds=60.0) as client, ExitStack() as opened:
        callers = [opened.enter_context(connect(client)) for _ in range(6)]
        for caller in callers:
            caller.sendall(request(BODY + b" " * 4_000_000))
            client.get("/health/live")  # so that it is read before the next one comes
        until(lambda: sum(map(readable, callers)) == 3)  # one runs, two wait within the budget
        go.set()
        codes = Counter(read_response(caller)[0][9:12] for caller in callers)
        assert codes == {b"200": 3, b"429": 3}
        for caller in callers:
            caller.sendall(request())
            assert read_response(caller)[0].startswith(b"HTTP/1.1 200"), "and each has one answer for its next request"


def memory(pid: int) -> int:
    """Resident, without mapped files, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose embeddings are long."""
    root = tmp_path_factory.mktemp("wide")
    Store(root).publish("demo", small_contents(config={"layers": 1, "hidden": 512}), onnx=False, activate=True)
    return root


def test_sixty_answers_that_are_not_read_stay_within_the_budget(wide: Path) -> None:
    """Each is some megabytes. The connections that hold most are cut off; all other clients are served."""
    body = gzip.compress(json.dumps({"nodes": [1] * 1000, "embeddings": True}).encode())
    headers = [b"content-encoding: gzip", b"content-type: application/json"]
    with in_processes(wide) as (client, process, _lines), ExitStack() as opened:
        assert len(client.post("/predict", json={"nodes": [1] * 1000, "embeddings": True}).content) > 4_000_000
        before = memory(process.pid)
        for _ in range(60):
            reader = opened.enter_context(socket.socket())
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect(("127.0.0.1", client.base_url.port))
            reader.sendall(request(body, *headers))
        until(lambda: 'sgf_shed_total{reason="bytes"} 0.0' not in client.get("/metrics").text)
        until(lambda: "sgf_queue_depth 0.0" in client.get("/metrics").text)
        assert memory(process.pid) - before < 100e6
        assert client.post("/predict", json={"nodes": [1]}).status_code == 200


def test_sixty_bodies_that_do_not_end_stay_within_the_budget(store: Path) -> None:
    part = b" " * 7_900_000
    with in_processes(store) as (client, process, _lines), ExitStack() as opened:
        before = memory(process.pid)
        senders = [opened.enter_context(connect(client)) for _ in range(60)]
        for sender in senders:
            sender.sendall(request(b" " * 8_000_000)[:-8_000_000] + part)
        until(lambda: 'sgf_shed_total{reason="bytes"} 0.0' not in client.get("/metrics").text)
        assert memory(process.pid) - before < 100e6
        assert client.post("/predict", json={"nodes": [1]}).status_code == 200, "the largest bodies were given up"
        assert b"429" in read_response(next(sender for sender in senders if readable(sender)))[0]
