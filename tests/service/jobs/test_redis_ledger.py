"""The ledger in Redis: which process may write a record, and validation of every record."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from service.jobs.job import Job
from service.jobs.ledger import JobConflict, UnknownJob
from service.jobs.redis_ledger import ORDER, PREFIX, WORKER_SECONDS, WORKERS, RedisLedger
from service.settings import Settings
from tests.service.redis_server import RedisServer


@pytest.fixture
def ledger(server: RedisServer, redis: Redis) -> RedisLedger:
    return RedisLedger(Settings(store=Path("nowhere"), redis_url=server.url))


def started(ledger: RedisLedger, key: str | None = None) -> Job:
    job = ledger.add(Job.new("demo", {"recipe": "digits"}), key)
    claimed = ledger.claim()
    assert claimed is not None
    assert claimed.id == job.id
    return claimed


def test_an_abandoned_job_stays_ended(ledger: RedisLedger, redis: Redis) -> None:
    job = started(ledger)
    redis.delete(f"{PREFIX}beat:{job.id}")  # the worker is disconnected
    assert ledger.abandon(job.ended("failed", "no heartbeat")).state == "failed"
    other = started(ledger)
    assert ledger.report(job, ["{}"], "") is True, "the worker must stop"
    assert ledger.report(job.ended("succeeded"), ["{}"], "") is True
    assert (ledger.get(job.id).state, ledger.get(other.id).state) == ("failed", "running")
    assert redis.get(f"{PREFIX}active:demo") == other.id
    assert ledger.report(other, [], "") is False


def test_a_key_belongs_to_one_model(ledger: RedisLedger) -> None:
    first = ledger.add(Job.new("one", {}), "nightly")
    other = ledger.add(Job.new("two", {}), "nightly")
    assert first.id != other.id
    assert ledger.add(Job.new("two", {}), "nightly").id == other.id


def test_a_report_restores_lost_records_unless_the_model_has_another_job(ledger: RedisLedger, redis: Redis) -> None:
    job = started(ledger)
    redis.flushall()
    assert ledger.report(job, ["{}"], "tail") is False
    assert (ledger.get(job.id).state, redis.get(f"{PREFIX}active:demo")) == ("running", job.id)
    redis.flushall()
    other = started(ledger)
    assert ledger.report(job, ["{}"], "tail") is True
    assert redis.get(f"{PREFIX}active:demo") == other.id


def test_an_active_job_does_not_expire_and_a_lost_record_blocks_no_job(ledger: RedisLedger, redis: Redis) -> None:
    job = started(ledger, "nightly")
    assert redis.ttl(f"{PREFIX}record:{job.id}") == -1, "no expiry while the job is active"
    with pytest.raises(JobConflict):
        ledger.add(Job.new("demo", {}), None)
    redis.delete(f"{PREFIX}record:{job.id}")
    again = ledger.add(Job.new("demo", {"recipe": "digits"}), "nightly")
    assert again.id != job.id
    assert ledger.cancel(again.id).state == "cancelled"
    assert redis.ttl(f"{PREFIX}record:{again.id}") > 0


def test_the_job_that_has_waited_longest_is_claimed_by_one_of_many(server: RedisServer, ledger: RedisLedger) -> None:
    times = [{"submitted_at": f"2026-01-01T00:00:0{number}+00:00"} for number in range(6)]
    jobs = [Job.new(f"model{number}", {}).model_copy(update=time) for number, time in enumerate(times)]
    for job in reversed(jobs):
        ledger.add(job, None)
    assert ledger.cancel(jobs[0].id).state == "cancelled"
    first = ledger.claim()
    assert first is not None
    assert (first.id, first.state) == (jobs[1].id, "running")
    claimed: list[Job | None] = []
    ledgers = [RedisLedger(Settings(redis_url=server.url)) for _ in range(8)]
    threads = [threading.Thread(target=lambda ledger=ledger: claimed.append(ledger.claim())) for ledger in ledgers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(job.id for job in claimed if job) == sorted(job.id for job in jobs[2:])
    assert ledger.claim() is None


RECORD: dict[str, Any] = Job.new("demo", {}).model_dump()


@pytest.mark.parametrize(
    ("job_id", "record"),
    [
        ("../../../etc/xx", {"id": "../../../etc/xx"}),
        ("0123456789abcde\n", {"id": "0123456789abcde\n"}),
        ("0" * 16, {}),
        ("0" * 16, {"id": "0" * 16, "model": "../elsewhere"}),
        ("0" * 16, {"id": "0" * 16, "state": "soup"}),
        ("0" * 16, {"id": "0" * 16, "submitted_at": "2020-01-01T00:00:00"}),
        ("0" * 16, {"id": "0" * 16, "started_at": "yesterday"}),
        ("0" * 16, None),
        ("0" * 16, b"\xff\xfe"),
        ("0" * 16, b"[" * 100_000),
    ],
)
def test_a_record_that_is_not_a_job_is_skipped_and_logged_once(
    ledger: RedisLedger, redis: Redis, caplog: pytest.LogCaptureFixture, job_id: str, record: dict[str, Any] | bytes | None
) -> None:
    redis.zadd(ORDER, {job_id: 1})
    redis.set(f"{PREFIX}record:{job_id}", record if isinstance(record, bytes) else json.dumps(record and RECORD | record))
    redis.set(f"{PREFIX}active:demo", job_id)
    redis.set(f"{PREFIX}key:demo:nightly", job_id)
    job = started(ledger, "nightly")
    assert [recorded.id for recorded in ledger.jobs()] == [job.id]
    with pytest.raises(UnknownJob, match="there is no job"):
        ledger.get(job_id)
    (line,) = [entry.getMessage() for entry in caplog.records if "invalid job" in entry.getMessage()]
    assert repr(job_id) in line
    assert line.endswith("it is skipped")


def test_a_report_replaces_a_damaged_record(ledger: RedisLedger, redis: Redis) -> None:
    job = started(ledger)
    redis.set(f"{PREFIX}record:{job.id}", "soup")
    redis.set(f"{PREFIX}key:demo:nightly", "soup")
    assert ledger.report(job, [], "") is False
    assert ledger.get(job.id) == job
    with pytest.raises(JobConflict, match=r"is (queued|running); a model has one job at a time"):
        ledger.add(Job.new("demo", {}), "nightly")


def test_a_worker_counts_as_connected_until_it_withdraws_or_is_silent(ledger: RedisLedger, redis: Redis) -> None:
    assert ledger.workers() == 0
    for worker in ("a:1", "b:1", "b:1"):
        ledger.announce(worker)
    assert ledger.workers() == 2
    ledger.withdraw("a:1")
    assert ledger.workers() == 1
    redis.zadd(WORKERS, {"b:1": redis.time()[0] - WORKER_SECONDS - 1})
    assert ledger.workers() == 0
    ledger.announce("c:1")
    assert redis.zrange(WORKERS, 0, -1) == ["c:1"], "a silent worker is removed"
