"""The cache: no wrong answer and no error, in any state of Redis."""

from __future__ import annotations

import asyncio
import re
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from model_store import Store
from service.predict.cache import ENTRY_BYTES, MAX_VALUE_BYTES, LocalCache, RedisCache
from service.predict.questions import parse_question
from service.settings import Settings
from service.telemetry.metrics import Metrics
from tests.model_store.samples import publish
from tests.service.redis_server import RedisServer
from tests.service.serving import in_thread, until

FEATURES = [0.5, -1.0, 0.25, 0.0, 2.0]
BOUNDED_SECONDS = 10.0
"""A request waits SGF_REDIS_TIMEOUT_SECONDS for a paused Redis; this limit is longer because the machine may be busy."""
PATIENT_SECONDS = 10.0
"""Timeout for a Redis that works."""
OTHER_COMMANDS = {"info", "keys", "config|resetstat", "config", "ping", "hello", "client", "client|setinfo"}
"""Commands of the test, of the health check, and of new connections."""


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    yield server
    server.kill()


def question(neighbor: int = 1) -> dict[str, Any]:
    return {"new_nodes": [{"id": "a", "features": FEATURES, "neighbors": [neighbor, 3]}]}


def lookups(client: httpx.Client, kind: str) -> dict[str, float]:
    """The number of look-ups by result."""
    pattern = rf'^sgf_cache_lookups_total{{kind="{kind}",result="(\w+)"}} (\S+)'
    return {result: float(count) for result, count in re.findall(pattern, client.get("/metrics").text, re.MULTILINE)}


def test_a_repeated_question_is_answered_from_the_cache(store: Path, redis_server: RedisServer) -> None:
    for kind, url in (("local", None), ("redis", redis_server.url)):
        with in_thread(store, redis_url=url, redis_timeout_seconds=PATIENT_SECONDS) as client:
            answers = [client.post("/predict", json=question()).content]
            until(lambda kind=kind: kind == "local" or bool(redis_server.client.keys("sgf:*")))
            answers += [client.post("/predict", json=question()).content for _ in range(2)]
            assert len(set(answers)) == 1
            assert lookups(client, kind) == {"miss": 1, "hit": 2}
            client.post("/predict", json=question(2))
            assert lookups(client, kind) == {"miss": 2, "hit": 2}
            client.post("/predict", json={"nodes": [1]})  # cheaper than a look-up
            assert lookups(client, kind) == {"miss": 2, "hit": 2}
    assert all(0 < redis_server.client.pttl(key) <= 3_600_000 for key in redis_server.client.keys("sgf:*"))


def test_the_digest_does_not_depend_on_the_spelling_of_the_json() -> None:
    same = [
        b'{"new_nodes": [{"id": "a", "features": [1, 2], "neighbors": [3, 1, 3]}], "mode": "exact"}',
        b'{"mode":"exact","new_nodes":[{"neighbors":[1,3],"features":[1.0,2e0],"id":"a"}],"nodes":[]}',
    ]
    others = [
        b'{"new_nodes": [{"id": "a", "features": [1, 2], "neighbors": [1, 3]}], "mode": "frozen"}',
        b'{"new_nodes": [{"id": "a", "features": [1, 2], "neighbors": ["1", 3]}]}',
        b'{"new_nodes": [{"id": "b", "features": [1, 2], "neighbors": [1, 3]}]}',
        b'{"new_nodes": [{"id": "a", "features": [2, 1], "neighbors": [1, 3]}]}',
        b'{"new_nodes": [{"id": "a", "features": [1, 2], "neighbors": [1]}]}',
        b'{"new_nodes": [{"id": "a", "features": [1, 2], "neighbors": [1, 3]}], "top_k": 1}',
    ]
    digests = [parse_question(body, 10**6).digest() for body in same]
    assert len(set(digests)) == 1
    assert len({*digests, *(parse_question(body, 10**6).digest() for body in others)}) == 1 + len(others)


def test_a_value_that_the_service_did_not_write_is_a_miss(store: Path, redis_server: RedisServer) -> None:
    with in_thread(store, redis_url=redis_server.url, redis_timeout_seconds=PATIENT_SECONDS) as client:
        right = client.post("/predict", json=question()).content
        until(lambda: bool(redis_server.client.keys("sgf:*")))
        (key,) = redis_server.client.keys("sgf:*")
        good = redis_server.client.get(key)
        bomb = zlib.compress(b"0" * (MAX_VALUE_BYTES + 2))
        forged = zlib.crc32(bomb).to_bytes(4, "little") + bomb
        for damage in (b"", b"soup", good[:-3], b"\0" * 50, forged):
            until(lambda: redis_server.client.get(key) == good)  # written after the answer was sent
            redis_server.client.set(key, damage)
            assert client.post("/predict", json=question()).content == right
        assert "sgf_cache_errors_total 5.0" in client.get("/metrics").text


def test_a_cached_answer_of_another_version_is_not_used(tmp_path: Path, redis_server: RedisServer) -> None:
    root = tmp_path / "store"
    publish(Store(root), seed=1, activate=True)
    with in_thread(root, redis_url=redis_server.url, redis_timeout_seconds=PATIENT_SECONDS) as client:
        first = client.post("/predict", json=question()).json()
        publish(Store(root), seed=2, activate=True)
        until(lambda: client.get("/health/ready").json()["version"] == 2)
        second = client.post("/predict", json=question()).json()
    assert (first["version"], second["version"]) == (1, 2)
    assert first["predictions"] != second["predictions"]


def test_a_cached_answer_of_another_engine_or_release_is_not_used(
    store: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines agree within 1e-5, not bit for bit, and another release may write other JSON."""

    def lookups_of_one_request(entries: int, **settings: Any) -> dict[str, float]:
        patient = {"redis_url": redis_server.url, "redis_timeout_seconds": PATIENT_SECONDS}
        with in_thread(store, **patient, **settings) as client:
            assert client.post("/predict", json=question()).status_code == 200
            until(lambda: len(redis_server.client.keys("sgf:*")) == entries)
            return lookups(client, "redis")

    assert lookups_of_one_request(1, backend="numpy") == {"miss": 1}
    assert lookups_of_one_request(2, backend="onnx") == {"miss": 1}
    assert lookups_of_one_request(2, backend="numpy") == {"hit": 1}
    monkeypatch.setattr("service.predict.encoding.FORMAT", 99)
    assert lookups_of_one_request(3, backend="numpy") == {"miss": 1}


def test_concurrent_failures_increase_the_backoff_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a short failure under load would turn off the cache for as long as a long one."""
    now = 100.0
    monkeypatch.setattr("service.predict.cache.time.monotonic", lambda: now)
    cache = RedisCache(Settings(redis_url="redis://127.0.0.1:1"), Metrics())

    async def main() -> None:
        nonlocal now
        for pause in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0):
            assert cache.available
            await asyncio.gather(*(cache.get("x") for _ in range(16)))
            now += pause - 0.01
            assert not cache.available
            now += 0.02
        await cache.close()

    asyncio.run(main())


def test_the_timeout_limits_all_steps_of_a_look_up_together() -> None:
    """A new connection sends a greeting and then the look-up: each is in time, and both together are late."""
    requests, closed = list[bytes](), asyncio.Event()

    async def answer_slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            requests.append(data)
            await asyncio.sleep(1.4)
            writer.write(b"+OK\r\n" * data.count(b"*"))
        writer.close()
        closed.set()

    async def main() -> None:
        server = await asyncio.start_server(answer_slowly, "127.0.0.1", 0)
        url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/1?protocol=2"
        cache = RedisCache(Settings(redis_url=url, redis_timeout_seconds=2.0), Metrics())
        assert await cache.get("x") is None
        assert not cache.available
        await cache.close()
        await closed.wait()
        server.close()

    asyncio.run(main())
    assert len(requests) == 2, "the first step was in time"


def test_slow_compression_does_not_count_as_a_failure_of_redis(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pack_slowly(value: bytes) -> bytes:
        time.sleep(0.3)
        return value

    monkeypatch.setattr("service.predict.cache._pack", pack_slowly)

    async def main() -> None:
        cache = RedisCache(Settings(redis_url=redis_server.url, redis_timeout_seconds=0.25), Metrics())
        await cache.get("connect")
        cache.put("large", b"x" * (MAX_VALUE_BYTES + 1))
        cache.put("slow", b"x")
        await asyncio.gather(*cache._writes)
        assert cache.available
        await cache.close()

    asyncio.run(main())
    assert redis_server.client.keys("sgf:*") == [b"sgf:slow"]


def test_the_health_check_notices_a_failure_without_requests(
    store: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.predict.cache.PULSE_SECONDS", 0.05)
    with in_thread(store, redis_url=redis_server.url, redis_timeout_seconds=PATIENT_SECONDS) as client:
        assert "sgf_cache_up 1.0" in client.get("/metrics").text
        redis_server.kill()
        until(lambda: "sgf_cache_up 0.0" in client.get("/metrics").text)
        redis_server.start()
        until(lambda: "sgf_cache_up 1.0" in client.get("/metrics").text)


def test_a_look_up_is_one_round_trip(store: Path, redis_server: RedisServer) -> None:
    def commands() -> dict[str, int]:
        statistics = redis_server.client.info("commandstats").items()
        calls = {name.removeprefix("cmdstat_"): entry["calls"] for name, entry in statistics}
        return {name: count for name, count in calls.items() if name not in OTHER_COMMANDS}

    with in_thread(store, redis_url=redis_server.url, redis_timeout_seconds=PATIENT_SECONDS) as client:
        client.post("/predict", json=question())
        until(lambda: bool(redis_server.client.keys("sgf:*")))
        redis_server.client.config_resetstat()
        for _ in range(10):
            client.post("/predict", json=question())
        assert commands() == {"get": 10}
        client.post("/predict", json=question(2))
        until(lambda: commands() == {"get": 11, "set": 1})


class Clients:
    """Four threads that repeat the same few requests and compare the answers with the expected ones."""

    def __init__(self, client: httpx.Client) -> None:
        self._url, self._stop = client.base_url, threading.Event()
        self._expected = {i: client.post("/predict", json=question(i)).json()["predictions"] for i in range(1, 20)}
        self.answered, self.wrong, self.slowest = 0, list[str](), 0.0
        self._threads = [threading.Thread(target=self._send_requests) for _ in range(4)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=60)

    def check(self) -> None:
        """Waits until every thread has repeated all requests, and checks the answers."""
        goal = self.answered + 2 * len(self._threads) * len(self._expected)
        until(lambda: self.answered > goal or bool(self.wrong))
        assert self.wrong == []
        assert self.slowest < BOUNDED_SECONDS

    def _send_requests(self) -> None:
        with httpx.Client(base_url=self._url, timeout=30) as own:
            while not self._stop.is_set():
                for neighbor, expected in self._expected.items():
                    start = time.perf_counter()
                    response = own.post("/predict", json=question(neighbor))
                    self.slowest = max(self.slowest, time.perf_counter() - start)
                    if response.status_code != 200 or response.json()["predictions"] != expected:
                        self.wrong.append(response.text)
                    self.answered += 1


def test_requests_under_load_while_redis_is_flushed_full_slow_paused_and_killed(
    store: Path, redis_server: RedisServer
) -> None:
    """No error, no wrong answer, and a bounded delay."""
    with in_thread(store, redis_url=redis_server.url, redis_timeout_seconds=0.2) as client, Clients(client) as clients:

        def is_up(up: int) -> bool:
            return f"sgf_cache_up {up}.0" in client.get("/metrics").text

        def errors() -> float:
            return float(client.get("/metrics").text.partition("\nsgf_cache_errors_total ")[2].partition("\n")[0])

        def hits() -> float:
            return lookups(client, "redis").get("hit", 0)

        clients.check()
        redis_server.client.flushall()
        clients.check()
        redis_server.client.config_set("maxmemory", "1")
        clients.check()
        before, failed = hits(), errors()
        assert client.post("/predict", json=question(59)).status_code == 200  # its answer cannot be stored
        until(lambda: errors() > failed)
        clients.check()
        assert hits() > before
        assert is_up(1), "stored answers can still be read"
        redis_server.client.config_set("maxmemory", "0")
        redis_server.client.client_pause(2_000)  # it answers late
        until(lambda: is_up(0))
        clients.check()
        until(lambda: is_up(1))
        for stop, start in ((redis_server.pause, redis_server.resume), (redis_server.kill, redis_server.start)):
            stop()
            clients.check()
            until(lambda: is_up(0))
            start()
            until(lambda: is_up(1))
            before = hits()
            until(lambda before=before: hits() > before)
            clients.check()


def test_the_local_cache_keeps_the_most_recently_used_answers() -> None:
    async def cached() -> list[bytes | None]:
        cache = LocalCache(2 * (ENTRY_BYTES + 5))
        cache.put("a", b"1234")
        cache.put("b", b"1234")
        await cache.get("a")
        cache.put("c", b"1234")
        cache.put("huge", b"1" * 1000)
        return [await cache.get(key) for key in ("a", "b", "c", "huge")]

    assert asyncio.run(cached()) == [b"1234", None, b"1234", None]
