"""The job service with Redis: counting, abandoned jobs, and leftover folders."""

from __future__ import annotations

import fcntl
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from redis import Redis

from model_store import Store
from service.jobs.job import Job
from service.jobs.job_folder import FOLDER, JobFolder
from service.jobs.job_service import JobService
from service.jobs.redis_ledger import PREFIX, RedisLedger
from service.jobs.submission import Submission
from service.jobs.training_worker import Worker
from service.settings import Settings
from service.telemetry.metrics import Metrics
from tests.service.jobs.retraining import data_root, weak_model
from tests.service.redis_server import RedisServer


@pytest.fixture
def settings(server: RedisServer, tmp_path: Path) -> Settings:
    weak_model(tmp_path / "models", data_root(tmp_path))
    return Settings(store=tmp_path / "models", redis_url=server.url)


@pytest.fixture
def service(settings: Settings, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> JobService:
    monkeypatch.setattr("service.jobs.worker_watch.ABANDONED_SECONDS", -1.0)
    return JobService(settings, Metrics())


def abandon_job(service: JobService, ledger: RedisLedger, redis: Redis) -> Job:
    job = service.submit(Submission(recipe="digits"), "demo", None)
    assert ledger.claim() is not None
    redis.delete(f"{PREFIX}beat:{job.id}")
    service.advance()
    return service.ledger.get(job.id)


def test_the_record_of_an_abandoned_job_shows_what_its_training_published(
    service: JobService, settings: Settings, redis: Redis, tmp_path: Path
) -> None:
    job = abandon_job(service, RedisLedger(settings), redis)
    assert (job.state, job.given_up, job.version, job.live) == ("failed", True, None, False)
    weak_model(settings.store, tmp_path / "data", job=job.id, activate=False)  # after its last check of the fencing file
    service.advance()
    record = service.ledger.get(job.id)
    assert (record.state, record.version, record.live) == ("failed", 2, False)
    versions = Store(settings.store).model("demo")
    assert record.snapshot == versions.manifest(2).snapshot
    versions.activate(2)
    service.advance()
    record = service.ledger.get(job.id)
    assert (record.state, record.error, record.version, record.live) == ("failed", job.error, 2, True)


def test_a_job_that_went_live_before_its_worker_died_has_succeeded(
    service: JobService, settings: Settings, redis: Redis, tmp_path: Path
) -> None:
    ledger = RedisLedger(settings)
    job = service.submit(Submission(recipe="digits"), "demo", None)
    assert ledger.claim() is not None
    weak_model(settings.store, tmp_path / "data", job=job.id)
    redis.delete(f"{PREFIX}beat:{job.id}")
    service.advance()
    record = service.ledger.get(job.id)
    assert (record.state, record.error, record.version, record.live) == ("succeeded", None, 2, True)


def test_every_state_is_counted_once_by_several_services(server: RedisServer, settings: Settings, redis: Redis) -> None:
    ledger = RedisLedger(settings)
    services = [JobService(settings, Metrics()) for _ in range(2)]

    def counted() -> dict[str, float]:
        registries = [service._metrics.registry for service in services]
        states = ("queued", "running", "succeeded", "cancelled")
        return {
            state: sum(
                registry.get_sample_value("sgf_retrain_jobs_total", {"state": state}) or 0.0 for registry in registries
            )
            for state in states
        }

    job = services[0].submit(Submission(recipe="digits"), "demo", "key")
    assert services[1].submit(Submission(recipe="digits"), "demo", "key").id == job.id
    assert counted()["queued"] == 1, "at once"
    ledger.cancel(job.id)
    ledger.add(Job.new("demo", {}), None)  # by a service that died before it counted the job
    running = ledger.claim()
    assert running is not None
    ledger.report(running.ended("succeeded"), [], "")
    for service in services:
        service.advance()
    assert counted() == {"queued": 2, "running": 1, "succeeded": 1, "cancelled": 1}


def test_folders_of_dead_workers_are_removed(service: JobService, settings: Settings, redis: Redis) -> None:
    job = abandon_job(service, RedisLedger(settings), redis)
    folders = {name: JobFolder(settings, name) for name in (job.id, "forgotten", "trains", "local")}
    for folder in folders.values():
        folder.path.mkdir(parents=True)
        folder.lock.touch()
        folder.fencing_file.touch()
    folders["local"].fencing_file.unlink()  # of a local job: another service removes it
    with folders["trains"].lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        service.advance()
    assert {name for name, folder in folders.items() if folder.path.exists()} == {"trains", "local"}


def test_a_training_that_does_not_start_leaves_no_folder(
    service: JobService, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    job = service.submit(Submission(data="graph.npz"), "demo", None)
    Worker(replace(settings, data_root=tmp_path / "data")).run(burst=True)
    record = service.ledger.get(job.id)
    assert (record.state, record.error) == ("failed", "the training did not start: No such file or directory")
    assert not (settings.store / FOLDER / job.id).exists()


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"recipe": "../elsewhere/evil.toml"}, "there is no recipe '../elsewhere/evil.toml'"),
        ({"dataset": "--store=/elsewhere"}, "there is no data set '--store=/elsewhere'"),
        ({"data": "../secret.npz"}, "data must be a relative path below the data root"),
        ({"recipe": "digits", "store": "/elsewhere"}, "the request in the job record is not valid"),
    ],
)
def test_a_forged_request_in_redis_is_checked_like_one_over_http(
    settings: Settings, redis: Redis, tmp_path: Path, request_: dict[str, str], error: str
) -> None:
    ledger = RedisLedger(settings)
    job = ledger.add(Job.new("demo", request_), None)
    Worker(replace(settings, data_root=tmp_path / "data")).run(burst=True)
    record = ledger.get(job.id)
    assert record.state == "failed"
    assert record.error is not None
    assert record.error.startswith(error)
