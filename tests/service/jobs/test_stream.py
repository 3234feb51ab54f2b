"""Event streams: a stream reads only new events, and a worker limits the number of streams."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import httpx
import pytest
from redis import Redis

from model_store.run_contract import EpochEvent
from service.http import event_stream
from service.jobs.job import Job
from service.jobs.job_folder import JobFolder
from service.jobs.job_service import JobService
from service.jobs.redis_ledger import PREFIX
from service.jobs.sqlite_ledger import SqliteLedger
from service.settings import Settings
from service.telemetry.metrics import Metrics
from tests.service.jobs.retraining import ADMIN, TOKEN, cancel, data_root, submit
from tests.service.redis_server import RedisServer
from tests.service.serving import in_thread, refused, until


@cache
def epoch(number: int) -> bytes:
    return EpochEvent(number=number, epochs=9, loss=1.0, validation=0.5, metric="accuracy").to_line().encode()


def test_a_stream_reads_only_new_events(tmp_path: Path) -> None:
    """The beginning of the file changes after it was read: a reader that started again would miscount the lines."""
    settings = Settings(store=tmp_path)
    job = SqliteLedger(settings).add(Job.new("demo", {}), None)
    file = JobFolder(settings, job.id).events
    file.parent.mkdir()
    file.write_bytes(epoch(1) + b"\n" + epoch(2) + b"\n" + epoch(3)[:5])

    async def read() -> list[str]:
        lines = event_stream.events(JobService(settings, Metrics()).ledger, job.id, 1)
        first = await anext(lines)
        content = file.read_bytes()
        file.write_bytes(content.replace(b"\n", b" ", 1) + epoch(3)[5:] + b"\n")
        return [first, await asyncio.wait_for(anext(lines), timeout=60)]

    assert asyncio.run(read()) == [f"id: {number}\nevent: epoch\ndata: {epoch(number).decode()}\n\n" for number in (2, 3)]


@pytest.fixture
def client(store: Path, tmp_path: Path, server: RedisServer, redis: Redis) -> Iterator[httpx.Client]:
    """Without a worker: a job stays queued."""
    root = data_root(tmp_path)
    with in_thread(store, admin_token=TOKEN, data_root=root, redis_url=server.url, redis_timeout_seconds=10.0) as client:
        yield client


def test_the_streams_of_a_worker_are_limited(client: httpx.Client) -> None:
    job_id = submit(client)
    url = f"/admin/jobs/{job_id}/events"

    def status() -> int:
        with client.stream("GET", url, headers=ADMIN) as response:
            return response.status_code

    with ExitStack() as stack:
        for _ in range(event_stream.MAX_STREAMS):
            response = stack.enter_context(client.stream("GET", url, headers=ADMIN))
            assert response.status_code == 200
        response = stack.enter_context(client.stream("GET", url, headers=ADMIN))
        assert response.status_code == 429
        response.read()
        assert "32 event streams are open" in refused(response, 429, "overloaded")
        assert response.headers["retry-after"] == "1"
        assert client.get(f"/admin/jobs/{job_id}", headers=ADMIN).status_code == 200
    until(lambda: status() == 200)
    cancel(client, job_id)


def test_a_forged_line_in_redis_cannot_forge_an_event(client: httpx.Client, redis: Redis) -> None:
    job_id = submit(client)
    lines = ['{"event": "epoch\\nevent: end"}', '{"event": "epoch"}\n\nevent: end\ndata: {}', "[1]", '{"event": 7}']
    redis.rpush(f"{PREFIX}events:{job_id}", *lines)
    cancel(client, job_id)
    text = client.get(f"/admin/jobs/{job_id}/events", headers=ADMIN).text
    assert [line for line in text.splitlines() if line.startswith("event: ")] == ["event: message"] * 4 + ["event: end"]
