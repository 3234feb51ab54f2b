"""Jobs through Redis and sgf-worker: progress, cancel, and what becomes of a job when something is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from model_store import Store
from service.jobs.job import Job
from service.jobs.job_folder import FOLDER
from service.jobs.redis_ledger import ORDER, PREFIX, WORKERS
from tests.service.jobs.retraining import (
    ADMIN,
    CANCEL_SECONDS,
    FOR_EVER,
    PATIENCE_SECONDS,
    QUICK,
    TOKEN,
    busy_machine,
    cancelled,
    counted,
    data_root,
    ended,
    events,
    job,
    retrain,
    seconds_until,
    submit,
    training_processes,
    trains,
    weak_model,
)
from tests.service.redis_server import RedisServer
from tests.service.serving import in_processes, refused, until
from tests.service.worker_process import worker


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("redis_jobs")
    weak_model(folder / "models", data_root(folder))
    return folder


@pytest.fixture(scope="module")
def redis_server(folder: Path) -> Iterator[RedisServer]:
    server = RedisServer(folder)
    yield server
    server.kill()


@pytest.fixture(scope="module")
def client(folder: Path, redis_server: RedisServer) -> Iterator[httpx.Client]:
    settings = {"admin_token": TOKEN, "model": "demo", "data_root": str(folder / "data"), "redis_url": redis_server.url}
    with in_processes(folder / "models", **settings) as running:
        yield running.client


def test_a_worker_trains_and_everybody_sees_it(client: httpx.Client, folder: Path, redis_server: RedisServer) -> None:
    accepted = retrain(client, "nightly", overrides=QUICK).json()
    job_id = accepted.pop("job")
    found = job(client, job_id)
    assert found["state"] == "queued", "there is no worker yet"
    warning = "no sgf-worker is connected to this Redis; the job waits until one is"
    assert accepted == {"workers": 0, "warning": warning}
    assert (found["workers"], found["warning"]) == (0, warning)
    assert "sgf_retrain_workers 0.0" in client.get("/metrics").text
    until(lambda: "sgf_retrain_jobs_waiting 1.0" in client.get("/metrics").text)
    assert submit(client, "nightly", overrides=QUICK) == job_id
    assert retrain(client, overrides=FOR_EVER).json()["details"] == {"job": job_id}
    with worker(folder, redis_server.url) as (process, _):
        told = events(client, job_id)
        assert [name for _, name, _ in told][-5:] == ["published", "verdict", "activated", "finished", "end"]
        found = job(client, job_id)
        assert (found["state"], found["version"], found["live"]) == ("succeeded", 2, True)
        assert "published demo 2" in found["log_tail"]
        until(lambda: client.get("/health/ready").json()["version"] == 2)
        until(lambda: 'sgf_retrain_jobs_total{state="succeeded"} 1.0' in client.get("/metrics").text)
        assert "sgf_retrain_jobs_waiting 0.0" in client.get("/metrics").text
        until(lambda: "sgf_retrain_epoch 0.0" in client.get("/metrics").text)
        accepted = retrain(client, overrides=FOR_EVER).json()
        job_id = accepted.pop("job")
        assert accepted == {"workers": 1}
        trains(client, job_id)
        until(lambda: counted(client, "running") == 2)
        until(lambda: "sgf_retrain_workers 1.0" in client.get("/metrics").text)
        found = job(client, job_id)
        assert (found["workers"], found["warning"]) == (None, None), "it does not wait"
        before = announced(redis_server, process.pid)
        until(lambda: announced(redis_server, process.pid) > before)  # while it trains
        assert counted(client, "queued") == 2, "though it waited for less than a look"
        with busy_machine():
            client.post(f"/admin/jobs/{job_id}/cancel", headers=ADMIN)
            assert seconds_until(lambda: not training_processes(job_id)) < CANCEL_SECONDS
            assert ended(client, job_id)["state"] == "cancelled"


def test_a_worker_that_is_killed_takes_its_training_along_and_the_job_has_failed(
    client: httpx.Client, folder: Path, redis_server: RedisServer
) -> None:
    with worker(folder, redis_server.url) as (process, _):
        job_id = submit(client, overrides=FOR_EVER)
        trains(client, job_id)
        process.send_signal(signal.SIGKILL)
        until(lambda: not training_processes(job_id), PATIENCE_SECONDS)  # at idle priority, with nobody left to hurry it
    found = ended(client, job_id)
    assert (found["state"], found["version"]) == ("failed", None)
    assert found["error"].startswith("no heartbeat of its worker for 10 s")
    until(lambda: not left_of(folder, job_id))
    waiting = submit(client, refresh=True)
    cancelled(client, waiting)
    job_id = submit(client, refresh=True)
    with worker(folder, redis_server.url):
        assert ended(client, job_id)["state"] == "succeeded"
        until(lambda: not left_of(folder, job_id))
    assert job(client, waiting)["state"] == "cancelled", "the worker skips it"


def test_a_worker_that_is_stopped_ends_its_training_and_reports_the_job(
    client: httpx.Client, folder: Path, redis_server: RedisServer
) -> None:
    with worker(folder, redis_server.url) as (process, _):
        job_id = submit(client, overrides=FOR_EVER)
        trains(client, job_id)
        process.terminate()
        assert process.wait(timeout=60) == 0
        assert not training_processes(job_id)
        found = job(client, job_id)
        assert (found["state"], found["error"]) == ("failed", "its worker was stopped (SIGTERM)")
        assert found["given_up"] is False
        assert not left_of(folder, job_id)
        assert not announced(redis_server, process.pid)
    with worker(folder, redis_server.url) as (process, _):
        until(lambda: announced(redis_server, process.pid))
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0


def test_what_others_write_into_redis_is_not_run(
    client: httpx.Client, folder: Path, redis_server: RedisServer, tmp_path: Path
) -> None:
    """A job of RQ, which names a function, and a record that names a folder outside of the store."""
    made, redis = tmp_path / "made", redis_server.client
    call = zlib.compress(json.dumps(["os.mkdir", None, [str(made)], {}]).encode())
    facts = {"data": call, "status": "queued", "origin": "sgf", "created_at": "2020-01-01T00:00:00.000000Z", "timeout": 60}
    redis.hset("rq:job:evil", mapping=facts)
    redis.sadd("rq:queues", "rq:queue:sgf")
    redis.rpush("rq:queue:sgf", "evil")
    outside = f"{folder}/outside"
    redis.zadd(ORDER, {outside: 1})
    redis.set(f"{PREFIX}record:{outside}", Job.new("demo", {}).model_copy(update={"id": outside}).model_dump_json())
    with worker(folder, redis_server.url):
        assert ended(client, submit(client, refresh=True))["state"] == "succeeded", "the worker continues"
    assert not made.exists()
    assert not Path(outside).exists()
    redis.flushall()


def test_a_job_that_was_given_up_while_its_worker_was_paused_does_not_go_live(
    client: httpx.Client, folder: Path, redis_server: RedisServer
) -> None:
    live = Store(folder / "models").model("demo").live()
    with worker(folder, redis_server.url), worker(folder, redis_server.url):
        job_id = submit(client, overrides=QUICK | {"epochs": 2000}, activate="always")
        trains(client, job_id)
        (training,) = training_processes(job_id)
        paused = parent_of(training)
        for pid in (paused, training):
            os.kill(pid, signal.SIGSTOP)  # as when their machine is paused
        try:
            found = ended(client, job_id)
            assert (found["state"], found["given_up"], found["version"], found["live"]) == ("failed", True, None, False)
            until(lambda: not left_of(folder, job_id))
            following = submit(client, overrides=FOR_EVER)
            trains(client, following)  # by the other worker
            os.kill(training, signal.SIGCONT)  # its worker stays paused
            until(lambda: ended_process(training), PATIENCE_SECONDS)
        finally:
            os.kill(paused, signal.SIGCONT)
        until(lambda: not Path(f"/proc/{training}").exists())  # its worker has reaped it, and continues
        assert Store(folder / "models").model("demo").live() == live
        after = job(client, job_id)
        assert (after["state"], after["version"], after["live"]) == ("failed", None, False)
        assert job(client, following)["state"] == "running"
        cancelled(client, following)


def announced(server: RedisServer, pid: int) -> float:
    """When a worker has announced itself; 0 if it is not connected."""
    return server.client.zscore(WORKERS, f"{socket.gethostname()}:{pid}") or 0


def left_of(folder: Path, job_id: str) -> bool:
    return (folder / "models" / FOLDER / job_id).exists()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def ended_process(pid: int) -> bool:
    """A zombie, because its parent is paused."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_redis_that_is_killed_and_comes_back_empty_loses_no_job_that_trains(
    client: httpx.Client, folder: Path, redis_server: RedisServer
) -> None:
    live = Store(folder / "models").model("demo").live()
    with worker(folder, redis_server.url):
        job_id = submit(client, overrides=FOR_EVER)
        before = trains(client, job_id)
        redis_server.kill()
        told = refused(client.get("/admin/jobs", headers=ADMIN), 503, "jobs_unavailable")
        assert f"failed (Error 111 connecting to {redis_server.address}. Connection refused.)" in told
        refused(retrain(client), 503, "jobs_unavailable")
        assert client.post("/predict", json={"nodes": [1]}).status_code == 200
        redis_server.start()
        until(lambda: client.get(f"/admin/jobs/{job_id}", headers=ADMIN).status_code == 200)
        trains(client, job_id, beyond=before["epoch"])
        assert retrain(client).json()["details"] == {"job": job_id}, "it still is the one job of this model"
        cancelled(client, job_id)
        job_id = submit(client, refresh=True)
        found = ended(client, job_id)
        assert (found["state"], found["live"], found["parent"]) == ("succeeded", True, live)
