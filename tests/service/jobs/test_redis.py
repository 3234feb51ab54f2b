"""Jobs through Redis and sgf-worker: progress, cancel, and kills of workers, trainings and Redis."""

from __future__ import annotations

import json
import os
import signal
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
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
    cancel,
    counted,
    data_root,
    events,
    job,
    retrain,
    seconds_until,
    submit,
    training_processes,
    wait_for_end,
    wait_for_epoch,
    weak_model,
)
from tests.service.redis_server import RedisServer
from tests.service.serving import in_processes, refused, until, worker


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
    record = job(client, job_id)
    assert record["state"] == "queued", "there is no worker yet"
    warning = "no sgf-worker is connected to this Redis; the job waits until one is"
    assert accepted == {"workers": 0, "warning": warning}
    assert (record["workers"], record["warning"]) == (0, warning)
    assert "sgf_retrain_workers 0.0" in client.get("/metrics").text
    until(lambda: "sgf_retrain_jobs_waiting 1.0" in client.get("/metrics").text)
    assert submit(client, "nightly", overrides=QUICK) == job_id
    assert retrain(client, overrides=FOR_EVER).json()["details"] == {"job": job_id}
    with worker(folder, redis_server.url) as (process, _):
        stream = events(client, job_id)
        assert [name for _, name, _ in stream][-5:] == ["published", "verdict", "activated", "finished", "end"]
        record = job(client, job_id)
        assert (record["state"], record["version"], record["live"]) == ("succeeded", 2, True)
        assert "published demo 2" in record["log_tail"]
        until(lambda: client.get("/health/ready").json()["version"] == 2)
        until(lambda: 'sgf_retrain_jobs_total{state="succeeded"} 1.0' in client.get("/metrics").text)
        assert "sgf_retrain_jobs_waiting 0.0" in client.get("/metrics").text
        until(lambda: "sgf_retrain_epoch 0.0" in client.get("/metrics").text)
        accepted = retrain(client, overrides=FOR_EVER).json()
        job_id = accepted.pop("job")
        assert accepted == {"workers": 1}
        wait_for_epoch(client, job_id)
        until(lambda: counted(client, "running") == 2)
        until(lambda: "sgf_retrain_workers 1.0" in client.get("/metrics").text)
        record = job(client, job_id)
        assert (record["workers"], record["warning"]) == (None, None), "only a queued job has these fields"
        before = announced(redis_server, process.pid)
        until(lambda: announced(redis_server, process.pid) > before)  # while it trains
        assert counted(client, "queued") == 2, "counted although it was queued for less than an interval of the leader"
        with busy_machine():
            client.post(f"/admin/jobs/{job_id}/cancel", headers=ADMIN)
            assert seconds_until(lambda: not training_processes(job_id)) < CANCEL_SECONDS
            assert wait_for_end(client, job_id)["state"] == "cancelled"


def test_a_killed_worker_takes_its_training_with_it_and_its_job_fails(
    client: httpx.Client, folder: Path, redis_server: RedisServer
) -> None:
    with worker(folder, redis_server.url) as (process, _):
        job_id = submit(client, overrides=FOR_EVER)
        wait_for_epoch(client, job_id)
        process.send_signal(signal.SIGKILL)
        until(lambda: not training_processes(job_id), PATIENCE_SECONDS)  # slow: no supervisor speeds up its exit
    record = wait_for_end(client, job_id)
    assert (record["state"], record["version"]) == ("failed", None)
    assert record["error"].startswith("no heartbeat of its worker for 10 s")
    until(lambda: not has_folder(folder, job_id))
    waiting = submit(client, refresh=True)
    cancel(client, waiting)
    job_id = submit(client, refresh=True)
    with worker(folder, redis_server.url):
        assert wait_for_end(client, job_id)["state"] == "succeeded"
        until(lambda: not has_folder(folder, job_id))
    assert job(client, waiting)["state"] == "cancelled", "the worker skips it"


def test_a_worker_trains_in_several_processes_which_end_with_the_job(
    client: httpx.Client, folder: Path, redis_server: RedisServer
) -> None:
    with worker(folder, redis_server.url, training_threads="2") as (process, _):
        batches = {"batch_nodes": 100}
        job_id = submit(client, processes=2, overrides=QUICK | batches, activate="always")
        record = wait_for_end(client, job_id)
        assert (record["state"], record["live"], record["request"]["processes"]) == ("succeeded", True, 2), record
        assert wait_for_end(client, submit(client, processes=2, refresh=True))["state"] == "succeeded"

        job_id = submit(client, processes=2, overrides=FOR_EVER | batches)
        until(lambda: len(ranks_of(job_id)) == 2)
        ranks = ranks_of(job_id)
        assert {(environ["OMP_NUM_THREADS"], os.getpriority(os.PRIO_PROCESS, pid)) for pid, environ in ranks.values()} == {
            ("1", 19)
        }
        wait_for_epoch(client, job_id)
        os.kill(ranks["1"][0], signal.SIGKILL)
        record = wait_for_end(client, job_id)
        assert (record["state"], record["error"]) == ("failed", "rank 1 was killed by SIGKILL, and the run has ended")

        job_id = submit(client, processes=2, overrides=FOR_EVER | batches)
        wait_for_epoch(client, job_id)
        client.post(f"/admin/jobs/{job_id}/cancel", headers=ADMIN)
        assert seconds_until(lambda: not training_processes(job_id)) < CANCEL_SECONDS
        assert wait_for_end(client, job_id)["state"] == "cancelled"

        job_id = submit(client, processes=2, overrides=FOR_EVER | batches)
        wait_for_epoch(client, job_id)
        assert len(training_processes(job_id)) == 3  # torch's launcher and two ranks
        process.send_signal(signal.SIGKILL)
        until(lambda: not training_processes(job_id), PATIENCE_SECONDS)
    assert wait_for_end(client, job_id)["state"] == "failed", "without its worker's heartbeat"


def test_a_worker_that_is_stopped_ends_its_training_and_reports_the_job(
    client: httpx.Client, folder: Path, redis_server: RedisServer
) -> None:
    with worker(folder, redis_server.url) as (process, _):
        job_id = submit(client, overrides=FOR_EVER)
        wait_for_epoch(client, job_id)
        process.terminate()
        assert process.wait(timeout=60) == 0
        assert not training_processes(job_id)
        record = job(client, job_id)
        assert (record["state"], record["error"]) == ("failed", "its worker was stopped (SIGTERM)")
        assert record["given_up"] is False
        assert not has_folder(folder, job_id)
        assert not announced(redis_server, process.pid)
    with worker(folder, redis_server.url) as (process, _):
        until(lambda: announced(redis_server, process.pid))
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0


def test_jobs_of_other_programs_in_redis_are_not_run(
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
        assert wait_for_end(client, submit(client, refresh=True))["state"] == "succeeded", "the worker continues"
    assert not made.exists()
    assert not Path(outside).exists()
    redis.flushall()


def test_a_job_that_was_abandoned_while_its_worker_was_paused_does_not_go_live(
    client: httpx.Client, folder: Path, redis_server: RedisServer
) -> None:
    live = Store(folder / "models").model("demo").live()
    with worker(folder, redis_server.url), worker(folder, redis_server.url):
        job_id = submit(client, overrides=QUICK | {"epochs": 2000}, activate="always")
        wait_for_epoch(client, job_id)
        (training,) = training_processes(job_id)
        paused = parent_of(training)
        for pid in (paused, training):
            os.kill(pid, signal.SIGSTOP)  # simulates a paused machine
        try:
            record = wait_for_end(client, job_id)
            assert (record["state"], record["given_up"], record["version"], record["live"]) == ("failed", True, None, False)
            until(lambda: not has_folder(folder, job_id))
            following = submit(client, overrides=FOR_EVER)
            wait_for_epoch(client, following)  # by the other worker
            os.kill(training, signal.SIGCONT)  # its worker stays paused
            until(lambda: ended_process(training), PATIENCE_SECONDS)
        finally:
            os.kill(paused, signal.SIGCONT)
        until(lambda: not Path(f"/proc/{training}").exists())  # its worker has reaped it, and continues
        assert Store(folder / "models").model("demo").live() == live
        after = job(client, job_id)
        assert (after["state"], after["version"], after["live"]) == ("failed", None, False)
        assert job(client, following)["state"] == "running"
        cancel(client, following)


def ranks_of(job_id: str) -> dict[str, tuple[int, dict[str, str]]]:
    """The processes that torch's launcher has started for a job: process id and environment, by rank."""
    processes = [(pid, psutil.Process(pid).environ()) for pid in training_processes(job_id)]
    return {environ["RANK"]: (pid, environ) for pid, environ in processes if "RANK" in environ}


def announced(server: RedisServer, pid: int) -> float:
    """The time of a worker's last announcement; 0 if it is not connected."""
    return server.client.zscore(WORKERS, f"{socket.gethostname()}:{pid}") or 0


def has_folder(folder: Path, job_id: str) -> bool:
    return (folder / "models" / FOLDER / job_id).exists()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def ended_process(pid: int) -> bool:
    """A zombie, because its parent is paused."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_running_job_survives_a_redis_that_is_killed_and_restarts_empty(
    client: httpx.Client, folder: Path, redis_server: RedisServer
) -> None:
    live = Store(folder / "models").model("demo").live()
    with worker(folder, redis_server.url):
        job_id = submit(client, overrides=FOR_EVER)
        before = wait_for_epoch(client, job_id)
        redis_server.kill()
        message = refused(client.get("/admin/jobs", headers=ADMIN), 503, "jobs_unavailable")
        assert f"failed (Error 111 connecting to {redis_server.address}. Connection refused.)" in message
        refused(retrain(client), 503, "jobs_unavailable")
        assert client.post("/predict", json={"nodes": [1]}).status_code == 200
        redis_server.start()
        until(lambda: client.get(f"/admin/jobs/{job_id}", headers=ADMIN).status_code == 200)
        wait_for_epoch(client, job_id, beyond=before["epoch"])
        assert retrain(client).json()["details"] == {"job": job_id}, "it is still the active job of the model"
        cancel(client, job_id)
        job_id = submit(client, refresh=True)
        record = wait_for_end(client, job_id)
        assert (record["state"], record["live"], record["parent"]) == ("succeeded", True, live)
