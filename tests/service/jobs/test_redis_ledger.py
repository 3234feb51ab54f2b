"""Who may write a job's record: whoever trains it, until somebody has given it up."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis import Redis

from service.errors import Refusal
from service.jobs.record import Job
from service.jobs.redis_ledger import PREFIX, RedisLedger
from service.settings import Settings
from tests.service.redis_server import RedisServer


@pytest.fixture
def ledger(server: RedisServer, redis: Redis) -> RedisLedger:
    return RedisLedger(Settings(store=Path("nowhere"), redis_url=server.url))


def started(ledger: RedisLedger, key: str | None = None) -> Job:
    job = ledger.add(Job.new("demo", {"recipe": "digits"}), key, "digest")
    found = ledger.claim(job.id)
    assert found is not None
    return found


def test_a_job_that_was_given_up_does_not_come_back_to_life(ledger: RedisLedger, redis: Redis) -> None:
    job = started(ledger)
    redis.delete(f"{PREFIX}beat:{job.id}")  # its worker is cut off
    assert ledger.give_up(job.ended("failed", "nothing was heard")).state == "failed"
    other = started(ledger)
    assert ledger.report(job, ["{}"], "") is True, "it is told to stop"
    assert ledger.report(job.ended("succeeded"), ["{}"], "") is True
    assert (ledger.get(job.id).state, ledger.get(other.id).state) == ("failed", "running")
    assert redis.get(f"{PREFIX}active:demo") == other.id
    assert ledger.report(other, [], "") is False


def test_a_key_is_of_one_model(ledger: RedisLedger) -> None:
    first = ledger.add(Job.new("one", {}), "nightly", "digest")
    other = ledger.add(Job.new("two", {}), "nightly", "digest")
    assert first.id != other.id
    assert ledger.add(Job.new("two", {}), "nightly", "digest").id == other.id


def test_a_redis_that_forgot_everything_is_told_again_unless_another_job_has_come(ledger: RedisLedger, redis: Redis) -> None:
    job = started(ledger)
    redis.flushall()
    assert ledger.report(job, ["{}"], "tail") is False
    assert (ledger.get(job.id).state, redis.get(f"{PREFIX}active:demo")) == ("running", job.id)
    redis.flushall()
    other = started(ledger)
    assert ledger.report(job, ["{}"], "tail") is True
    assert redis.get(f"{PREFIX}active:demo") == other.id


def test_a_job_in_hand_does_not_expire_and_a_lost_record_blocks_nobody(ledger: RedisLedger, redis: Redis) -> None:
    job = started(ledger, "nightly")
    assert redis.ttl(f"{PREFIX}record:{job.id}") == -1, "for as long as it takes"
    with pytest.raises(Refusal):
        ledger.add(Job.new("demo", {}), None, "other")
    redis.delete(f"{PREFIX}record:{job.id}")
    again = ledger.add(Job.new("demo", {"recipe": "digits"}), "nightly", "digest")
    assert again.id != job.id
    assert ledger.cancel(again.id).state == "cancelled"
    assert redis.ttl(f"{PREFIX}record:{again.id}") > 0
