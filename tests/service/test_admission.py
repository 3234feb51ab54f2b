"""Who is let in, and who is told to come back."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

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


def test_a_body_that_does_not_come_is_given_up_and_another_cancellation_is_not_mistaken_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admission, now = Admission(Settings(body_seconds=10.0), Metrics()), 100.0
    monkeypatch.setattr("service.admission.time", SimpleNamespace(monotonic=lambda: now))

    async def trickle() -> None:
        with admission.receiving:
            await asyncio.sleep(60)

    async def main() -> None:
        nonlocal now
        old, cancelled = asyncio.create_task(trickle()), asyncio.create_task(trickle())
        await asyncio.sleep(0)
        cancelled.cancel()
        now += 10.1
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
    metrics = Metrics()
    admission = Admission(Settings(max_inflight=5, late_inflight=2), metrics)

    def taken() -> int:
        admission.beat()
        count = 0
        with ExitStack() as inside, suppress(Refusal):
            while True:
                inside.enter_context(admission.answering)
                count += 1
        return count

    for waits, places in ((False, 5), (True, 2), (False, 5)):
        monkeypatch.setattr("service.crowd.Crowd.waits_for_long", lambda _self, waits=waits: waits)
        assert taken() == places
    metrics.book()
    for reason, count in (("lag", 1), ("inflight", 2)):
        assert f'sgf_shed_total{{reason="{reason}"}} {count}.0' in metrics.page().decode()


def test_a_full_service_refuses_at_once_and_recovers(store: Path) -> None:
    with in_thread(store, max_inflight=1, body_seconds=30.0) as client:
        with ExitStack() as opened:
            for _ in range(4):
                slow = opened.enter_context(socket.create_connection(("127.0.0.1", client.base_url.port)))
                slow.sendall(b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
                client.get("/health/live")  # so that it was read before the next one comes

            def shed() -> bool:
                return client.post("/predict", json={"nodes": [1]}).status_code == 429

            until(shed)
            response = client.post("/predict", json={"nodes": [1]})
            refused(response, 429, "overloaded")
            assert response.headers["retry-after"] == "1"
            assert client.get("/health/live").status_code == 200
        until(lambda: client.post("/predict", json={"nodes": [1]}).status_code == 200)
