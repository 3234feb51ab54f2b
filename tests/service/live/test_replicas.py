"""Several workers and services on one log: equal states, no lost change, none twice, whatever is killed."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from model_store import Store
from model_store.graph_log import FileLog
from model_store.graph_log.file_log import LEASE_SECONDS
from tests.model_store.graph_log.logs import read_all
from tests.model_store.samples import small_contents
from tests.service.live.rebuilt import KEY, Rebuilt, add_node, change, commit, edge, predict
from tests.service.redis_server import RedisServer
from tests.service.serving import CONTENTS, in_processes, in_thread, refused, until, worker_pids

KILLS = int(os.environ.get("SGF_WORKER_KILLS", "3"))


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    (tmp_path / "redis").mkdir()
    server = RedisServer(tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "always")
    yield server
    server.kill()


def fresh(client: httpx.Client, seconds: float = 30) -> httpx.Client:
    """A new connection, which may reach any worker."""
    return httpx.Client(base_url=client.base_url, timeout=seconds)


def states(client: httpx.Client, sequence: int) -> set[tuple[Any, ...]]:
    """Sequence, hash and size of the graph, from 16 connections in a row: about every worker."""
    seen: list[tuple[Any, ...]] = []

    def all_reached() -> bool:
        with fresh(client) as other:
            state = other.get("/graph").json()
        seen.append(tuple(state[name] for name in ("sequence", "hash", "nodes", "edges")))
        return len(seen) >= 16 and all(state[0] == sequence for state in seen[-16:])

    until(all_reached)
    return set(seen[-16:])


@pytest.mark.parametrize("kind", ["file", "redis"])
def test_two_services_with_two_workers_each_reach_equal_states(own_store: Path, kind: str, request) -> None:
    """One worker is paused for longer than a lease, and resumed: it may have lost the lease in a commit."""
    settings = {"write_keys": KEY, "graph_log": kind}
    if kind == "redis":
        settings["redis_url"] = request.getfixturevalue("redis").url
    with ExitStack() as stack:
        running = [stack.enter_context(in_processes(own_store, 2, **settings)) for _ in range(2)]
        services = [service.client for service in running]

        def send(number: int) -> int:
            with fresh(services[number % 2]) as client:
                return commit(client, add_node(100 + number, number, 0, number % 60), key=f"key {number}")

        server = running[0].process.pid
        until(lambda: len(worker_pids(server)) == 2)
        with ThreadPoolExecutor(8) as pool:
            sent = pool.map(send, range(60))
            paused = worker_pids(server)[0]
            os.kill(paused, signal.SIGSTOP)
            try:
                time.sleep(1.1 * LEASE_SECONDS)
            finally:
                os.kill(paused, signal.SIGCONT)
            sequences = list(sent)
        assert sorted(sequences) == list(range(1, 61))
        durability = change(services[0], edge("add_edge", 100, 101)).json()["durability"]
        assert durability == "fsync" if kind == "file" else durability.startswith("aof")
        found = [states(client, 61) for client in services]
        assert found[0] == found[1]
        assert len(found[0]) == 1
        rebuilt = Rebuilt(CONTENTS).apply(*(add_node(100 + n, n, 0, n % 60) for n in range(60)), edge("add_edge", 100, 101))
        expected = rebuilt.probabilities()
        for client in services:
            answers = predict(client, nodes=list(expected))
            np.testing.assert_allclose(list(answers.values()), list(expected.values()), atol=1e-5)


class Senders:
    """Clients that commit one node after another, each with a key, and send it again until it is acknowledged."""

    def __init__(self, client: httpx.Client, pool: ThreadPoolExecutor, count: int = 4) -> None:
        self.acknowledged: dict[str, int] = {}
        self._stop, self._client = threading.Event(), client
        self._senders = [pool.submit(self._send, name) for name in range(count)]

    def wait_for(self, count: int) -> None:
        """Until so many more changes are acknowledged."""
        before = len(self.acknowledged)
        until(lambda: len(self.acknowledged) >= before + count)

    def finish(self) -> None:
        self._stop.set()
        for sender in self._senders:
            sender.result()

    def _send(self, name: int) -> None:
        number = 0
        while not self._stop.is_set():
            sequence = self._commit(f"{name}/{number}", add_node(1_000_000 * (name + 1) + number, number, number % 60))
            if sequence is not None:
                self.acknowledged[f"{name}/{number}"] = sequence
                number += 1

    def _commit(self, key: str, operation: Any) -> int | None:
        try:
            with fresh(self._client, seconds=10) as client:
                response = change(client, operation, key=key)
        except httpx.TransportError:
            return None
        assert response.status_code in (200, 429, 503), response.text
        return response.json().get("sequence")


@pytest.mark.parametrize("what", ["killed", "paused"])
def test_no_acknowledged_change_is_lost_or_made_twice_when_workers_are(own_store: Path, what: str) -> None:
    """SGF_WORKER_KILLS: how many workers are killed. A paused worker loses the lease after 3 s, if it holds it."""
    chance = random.Random(0)  # noqa: S311  # moments, not secrets
    service = in_processes(own_store, 3, write_keys=KEY, access_log="false")
    with service as (client, process, _), ThreadPoolExecutor(4) as pool:
        until(lambda: len(worker_pids(process.pid)) == 3)
        senders = Senders(client, pool)
        try:
            senders.wait_for(5)
            for _ in range(KILLS if what == "killed" else 2):
                time.sleep(chance.uniform(0.0, 0.3))
                until(lambda: worker_pids(process.pid))
                worker = chance.choice(worker_pids(process.pid))
                os.kill(worker, signal.SIGKILL if what == "killed" else signal.SIGSTOP)
                try:
                    senders.wait_for(6)
                finally:
                    if what == "paused":
                        os.kill(worker, signal.SIGCONT)
        finally:
            senders.finish()
        (folder,) = (own_store / "demo" / "graph_log").iterdir()
        log = FileLog(folder)
        records, last = read_all(log), log.position().sequence
        log.close()
        logged = {record.key: record.sequence for record in records}
        assert len(logged) == len(records) == last, "no key is in the log twice"
        unanswered = logged.keys() - senders.acknowledged.keys()
        assert senders.acknowledged.items() <= logged.items()
        assert len(unanswered) <= 4, "at most the last one of each sender"
        with fresh(client) as other:
            until(lambda: other.get("/graph").json()["sequence"] == last)
            assert other.get("/graph").json()["nodes"] == 60 + last


def test_a_service_without_redis_refuses_changes_and_goes_on_when_it_is_back(own_store: Path, redis: RedisServer) -> None:
    settings = {"write_keys": (KEY,), "graph_log": "redis", "redis_url": redis.url, "deadline_seconds": 5.0}
    with in_thread(own_store, **settings) as client:
        assert commit(client, add_node(100, 1, 0), key="a") == 1
        expected = predict(client, nodes=[0, 100])
        redis.kill()
        message = refused(change(client, add_node(101), key="b"), 503, "store_unavailable")
        assert "Redis" in message
        assert redis.address not in message or "Connection refused" in message
        assert predict(client, nodes=[0, 100]) == expected
        redis.start()
        until(lambda: change(client, add_node(101), key="b").status_code == 200)
        assert commit(client, add_node(101), key="b") == 2


GRAPH = {"sha256": "ab" * 32}


@pytest.fixture
def versions(tmp_path: Path) -> Path:
    """Versions 1 and 2 over one graph, and version 3 over another; 1 is live."""
    store, root = Store(tmp_path / "store"), tmp_path / "store"
    config = {"layers": 3, "hidden": 8, "gnn_activation": False}
    contents = small_contents(1, config=config, dataset=GRAPH)
    store.publish("demo", contents, onnx=False, activate=True)
    other = small_contents(2, graph=contents.graph, config=config, dataset=GRAPH)
    store.publish("demo", other, onnx=False)
    store.publish("demo", small_contents(3, config=config, dataset={"sha256": "cd" * 32}), onnx=False)
    return root


def test_versions_are_swapped_during_commits_and_no_answer_goes_back(versions: Path) -> None:
    stop, problems = threading.Event(), []

    def watch(client: httpx.Client) -> None:
        last = 0
        with fresh(client) as own:
            while not stop.is_set():
                answer = own.post("/predict", json={"nodes": [0], "min_sequence": last}).json()
                if answer.get("sequence", 0) < last:
                    problems.append((last, answer))
                last = answer.get("sequence", 0)

    with in_thread(versions, write_keys=(KEY,)) as client, ThreadPoolExecutor(2) as pool:
        watchers = [pool.submit(watch, client) for _ in range(2)]
        try:
            for number in range(60):
                assert commit(client, add_node(100 + number, number, 0, number)) == number + 1
                if number % 15 == 5:
                    Store(versions).model("demo").activate(2 - number // 15 % 2)
        finally:
            stop.set()
        for watcher in watchers:
            watcher.result()
        assert not problems
        live = Store(versions).model("demo").live()
        until(lambda: client.get("/health/ready").json()["version"] == live)
        assert client.get("/health/ready").json()["sequence"] == 60
        config = {"layers": 3, "hidden": 8, "gnn_activation": False}
        graph = small_contents(1, config=config).graph
        rebuilt = Rebuilt(small_contents(live, graph=graph, config=config))
        expected = rebuilt.apply(*(add_node(100 + n, n, 0, n) for n in range(60))).probabilities()
        answers = predict(client, nodes=list(expected))
        np.testing.assert_allclose(list(answers.values()), list(expected.values()), atol=1e-5)


def test_a_version_over_another_graph_needs_the_word_that_changes_are_discarded(versions: Path) -> None:
    token = {"authorization": f"Bearer {'t' * 16}"}
    with in_thread(versions, write_keys=(KEY,), admin_token="t" * 16) as client:

        def activate(version: int, **fields: Any) -> httpx.Response:
            return client.post("/admin/models/activate", json={"version": version, **fields}, headers=token)

        assert activate(3).status_code == 200, "there are no changes yet"
        until(lambda: client.get("/health/ready").json()["version"] == 3)
        assert activate(1).status_code == 200
        until(lambda: client.get("/health/ready").json()["version"] == 1)
        commit(client, add_node(100, 1, 0))
        assert activate(2).status_code == 200, "it has the same graph"
        message = refused(activate(3), 409, "conflict")
        assert "1 change" in message
        assert "discard" in message
        assert activate(3, discard_changes=True).status_code == 200
        until(lambda: client.get("/health/ready").json()["version"] == 3)
        refused(client.post("/predict", json={"nodes": [100]}), 404, "unknown_node")
        assert activate(1).status_code == 200
        until(lambda: client.get("/health/ready").json()["version"] == 1)
        assert predict(client, nodes=[100]), "the log has kept them"


def test_a_log_that_is_damaged_keeps_the_old_version_in_service(versions: Path) -> None:
    with in_thread(versions, write_keys=(KEY,)) as client:
        for number in range(3):
            commit(client, add_node(100 + number, number, 0))
        (segment,) = (versions / "demo" / "graph_log").glob("*/*.log")
        content = bytearray(segment.read_bytes())
        content[300] ^= 1
        segment.write_bytes(content)
        Store(versions).model("demo").activate(2)
        until(lambda: client.get("/models").json()["failure"])
        assert "the hash of the record" in client.get("/models").json()["failure"]["error"]
        ready = client.get("/health/ready").json()
        assert (ready["version"], ready["sequence"]) == (1, 3)
        assert predict(client, nodes=[100, 102])
