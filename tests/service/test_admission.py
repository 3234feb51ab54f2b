"""Who is let in, and who is told to come back."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from service.admission import Admission
from service.errors import Refusal
from service.metrics import Metrics
from service.settings import Settings
from tests.service.serving import in_thread, refused, until


def test_too_many_at_once_are_told_to_come_back() -> None:
    admission = Admission(Settings(max_inflight=2), Metrics())
    with admission.answering:
        with admission.answering, pytest.raises(Refusal) as caught, admission.answering:
            pass
        assert (caught.value.status, caught.value.headers) == (429, {"retry-after": "1"})
        with admission.answering:
            pass


def test_heads_that_come_in_one_turn_of_the_event_loop_are_counted_before_their_tasks_run() -> None:
    admission = Admission(Settings(max_inflight=2), Metrics())

    async def main() -> None:
        with admission.answering:
            assert [admission.announce(caller) for caller in range(3)] == [True, False, False]
            await asyncio.sleep(0)
            assert admission.announce(9), "that one did not enter: a page, or a body that is still coming"
        await asyncio.sleep(0)
        assert [admission.announce(caller) for caller in range(3)] == [True, True, False]

    asyncio.run(main())


def test_bodies_that_trickle_in_take_no_place_but_are_not_without_number() -> None:
    admission = Admission(Settings(max_inflight=1), Metrics())

    async def trickle(done: asyncio.Event) -> None:
        with admission.receiving:
            await done.wait()

    async def main() -> None:
        done = asyncio.Event()
        slow = [asyncio.create_task(trickle(done)) for _ in range(4)]
        await asyncio.sleep(0)
        with admission.answering:
            pass
        with pytest.raises(Refusal), admission.receiving:
            pass
        done.set()
        await asyncio.gather(*slow)
        with admission.receiving:
            pass

    asyncio.run(main())


def test_a_body_that_does_not_come_is_given_up_and_another_cancellation_is_not_mistaken_for_that() -> None:
    admission = Admission(Settings(body_seconds=0.05), Metrics())

    async def trickle() -> None:
        with admission.receiving:
            await asyncio.sleep(60)

    async def main() -> None:
        old, cancelled = asyncio.create_task(trickle()), asyncio.create_task(trickle())
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.sleep(0.06)
        young = asyncio.create_task(trickle())
        await asyncio.sleep(0)
        for _ in range(2):  # the second look finds it given up already
            admission.beat()
        results = await asyncio.gather(old, cancelled, asyncio.wait_for(young, 0.01), return_exceptions=True)
        assert isinstance(results[0], Refusal)
        assert results[0].status == 408
        assert [type(one) for one in results[1:]] == [asyncio.CancelledError, TimeoutError]

    asyncio.run(main())


def test_while_a_crowd_waits_for_long_a_worker_takes_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    admission = Admission(Settings(max_lag_seconds=0.005, max_inflight=64, late_inflight=8), Metrics())  # a crowd: over 32
    now = 100.0
    monkeypatch.setattr("service.crowd.time.monotonic", lambda: now)

    def taken(crowd: int, seconds: float = 0.0) -> int:
        """How many of a crowd, all of whom come at once and are answered after a time."""
        nonlocal now
        count = 0
        with ExitStack() as inside, suppress(Refusal):
            for _ in range(crowd):
                inside.enter_context(admission.answering)
                count += 1
            now += seconds
        admission.beat()
        return count

    assert [taken(64, 0.02) for _ in range(4)] == [64] * 4
    assert taken(64, 0.001) == 64  # a hiccup, and they are quick again
    assert [taken(32, 0.02) for _ in range(9)] == [32] * 9  # slow, but no crowd
    assert [taken(64, 0.02) for _ in range(6)] == [64] * 5 + [8]
    for _ in range(5):  # it comes again and again: quickly answered now, because fewer are taken
        assert taken(64, 0.002) == 8
        now += 0.5
    now += 1.1
    admission.beat()
    assert taken(64) == 64

    assert [taken(64, 0.02) for _ in range(5)] == [64] * 5
    for beats, then in ((24, 8), (25, 64)):  # a quarter of a second with nothing to do
        for _ in range(beats):
            admission.beat()
            now += 0.001
        assert taken(64) == then


def test_a_few_who_ask_again_at_once_when_they_are_refused_are_no_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    admission = Admission(Settings(max_inflight=64, late_inflight=4), Metrics())
    now = 100.0
    monkeypatch.setattr("service.crowd.time.monotonic", lambda: now)

    async def refused_of(callers: int, seconds: float) -> int:
        """Of so many, all of whom ask again and again; at the end of that time."""
        nonlocal now
        refused, end = 0, now + seconds
        while now < end:
            with ExitStack() as inside:
                places = [admission.announce(caller) for caller in range(callers)]
                await asyncio.sleep(0)
                for _ in range(sum(places)):
                    inside.enter_context(admission.answering)
                now += 0.01
                for _ in range(callers - sum(places)):
                    admission.turn_away()
            admission.beat()
            refused = callers - sum(places)
        return refused

    assert asyncio.run(refused_of(32, 3.0)) == 0
    assert asyncio.run(refused_of(33, 3.0)) == 29
    assert asyncio.run(refused_of(32, 0.5)) == 28
    assert asyncio.run(refused_of(32, 2.0)) == 0
    assert asyncio.run(refused_of(64, 3.0)) == 60


def test_a_full_service_refuses_at_once_and_recovers(store: Path) -> None:
    with in_thread(store, max_inflight=1, body_seconds=30.0) as client:
        with ExitStack() as opened:
            for _ in range(4):
                slow = opened.enter_context(socket.create_connection(("127.0.0.1", client.base_url.port)))
                slow.sendall(b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")

            def shed() -> bool:
                return client.post("/predict", json={"nodes": [1]}).status_code == 429

            until(shed)
            response = client.post("/predict", json={"nodes": [1]})
            refused(response, 429, "overloaded")
            assert response.headers["retry-after"] == "1"
            assert client.get("/health/live").status_code == 200
        until(lambda: client.post("/predict", json={"nodes": [1]}).status_code == 200)
