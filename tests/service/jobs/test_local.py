"""Local jobs over HTTP: real processes, a service with two workers, no Redis."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from model_store import Store
from service.jobs.job import Job
from service.jobs.job_folder import JobFolder
from service.jobs.sqlite_ledger import SqliteLedger
from service.settings import Settings
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
from tests.service.serving import Running, in_processes, refused, until, worker_pids

SETTINGS = {"admin_token": TOKEN, "model": "demo", "cache_known": "true", "training_threads": "1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("retraining")
    weak_model(folder / "models", data_root(folder))
    return folder


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Running]:
    with in_processes(folder / "models", 2, data_root=str(folder / "data"), **SETTINGS) as service:
        yield service


def test_a_retraining_under_load_goes_live_without_a_failed_request(running: Running, folder: Path) -> None:
    """Predict, retrain over HTTP under load, read events, pass the gate, swap in all workers."""
    client = running.client
    question = {"nodes": [3, 5], "embeddings": True}
    before = client.post("/predict", json=question).json()
    assert client.post("/predict", json=question).json() == before, "from the cache"
    seen: Counter[tuple[int, int]] = Counter()
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            with httpx.Client(base_url=client.base_url, timeout=30, verify=False) as own:  # noqa: S501  # plain HTTP
                for _ in range(10):
                    response = own.post("/predict", json=question)
                    seen[response.status_code, response.json().get("version", 0)] += 1
                    stop.wait(0.02)  # leaves processor time to the training, which has idle priority

    callers = [threading.Thread(target=load) for _ in range(2)]
    for caller in callers:
        caller.start()
    try:
        accepted = retrain(client, overrides=QUICK, warm_start=True).json()
        assert accepted["workers"] == 1
        assert "warning" not in accepted
        job_id = accepted["job"]
        stream = events(client, job_id)
        # Two workers took version 1, and then each took version 2.
        until(lambda: 'sgf_model_swaps_total{result="taken"} 4.0' in client.get("/metrics").text)
        until(lambda: seen[200, 2] > 40)
    finally:
        stop.set()
        for caller in callers:
            caller.join(timeout=20)
    assert set(seen) == {(200, 1), (200, 2)}, "every request succeeded, with version 1 or 2"
    for _ in range(20):
        with httpx.Client(base_url=client.base_url, timeout=30) as fresh:
            after = fresh.post("/predict", json=question).json()
            assert after["version"] == 2, "in all workers, and not from the cache"
            assert after["predictions"] != before["predictions"]
    assert [name for _, name, _ in stream][:2] == ["started", "data"]
    assert [name for _, name, _ in stream][-5:] == ["published", "verdict", "activated", "finished", "end"]
    assert [number for number, _, _ in stream[:-1]] == [str(number) for number in range(1, len(stream))]
    assert events(client, job_id, after=len(stream) - 2) == stream[-2:], "a reader resumes after a lost connection"
    record = job(client, job_id)
    manifest = Store(folder / "models").model("demo").manifest(2)
    assert (record["state"], record["version"], record["parent"], record["live"]) == ("succeeded", 2, 1, True)
    assert record["snapshot"] == manifest.snapshot
    assert record["data"]["sha256"] == manifest.dataset["sha256"]
    assert record["settings"]["learning_rate"] == 0.02
    assert record["warm_start"]["fresh"] == []
    assert manifest.training["job"] == job_id
    assert record["verdict"]["comparison"]["difference"] > 2 * record["verdict"]["comparison"]["standard_error"]
    assert record["verdict"]["fair"] is True
    assert "published demo 2" in record["log_tail"]
    assert str(folder) not in str(record)
    page = client.get("/metrics").text
    for state in ("queued", "running", "succeeded"):
        assert f'sgf_retrain_jobs_total{{state="{state}"}} 1.0' in page
    assert "sgf_retrain_epoch 0.0" in page, "no training is running"
    assert "sgf_retrain_workers 1.0" in page


def test_a_worse_model_does_not_go_live_and_the_job_says_why(running: Running, folder: Path) -> None:
    weak_model(folder / "models", folder / "data", epochs=40)  # trained well enough to be better than the next one
    record = wait_for_end(running.client, submit(running.client, data="shuffled.npz", overrides=QUICK))
    versions = Store(folder / "models").model("demo")
    assert (record["state"], record["live"], versions.live()) == ("succeeded", False, record["parent"])
    comparison = record["verdict"]["comparison"]
    assert comparison["new_score"] < comparison["live_score"]
    assert comparison["losses"] > comparison["wins"]
    assert record["verdict"]["reason"].startswith(f"not better than version {record['parent']}: accuracy 0.")
    assert record["version"] in versions.versions(), "published, not live"


def test_one_key_makes_one_job_and_another_request_is_refused(running: Running) -> None:
    client = running.client
    job_ids: list[str] = []
    callers = [
        threading.Thread(target=lambda: job_ids.append(submit(client, "nightly", overrides=FOR_EVER, activate="never")))
        for _ in range(10)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=30)
    (job_id,) = set(job_ids)
    assert len(job_ids) == 10
    other = retrain(client, overrides=QUICK)
    assert job_id in refused(other, 409, "conflict")
    assert other.json()["details"] == {"job": job_id}
    refused(retrain(client, "nightly", overrides=QUICK), 409, "conflict")
    until(lambda: job(client, job_id)["state"] == "running" and training_processes(job_id))
    (pid,) = training_processes(job_id)
    until(lambda: os.sched_getscheduler(pid) == os.SCHED_IDLE)
    assert os.getpriority(os.PRIO_PROCESS, pid) == 19
    assert os.getpgid(pid) == pid, "its own process group"
    wait_for_epoch(client, job_id)
    service = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    assert os.getsid(pid) == os.getsid(service), "in another session, idle priority would not yield to the service"
    environ = Path(f"/proc/{pid}/environ").read_text()
    assert "OMP_NUM_THREADS=1" in environ.replace("\0", "\n").split("\n")
    assert TOKEN not in environ
    with busy_machine():  # without help, a killed process at idle priority exits after seconds
        assert client.post(f"/admin/jobs/{job_id}/cancel", headers=ADMIN).json()["cancel_requested"] is True
        assert seconds_until(lambda: not training_processes(job_id)) < CANCEL_SECONDS
        assert wait_for_end(client, job_id)["state"] == "cancelled"
    assert submit(client, "nightly", overrides=FOR_EVER, activate="never") == job_id, "the key still names the job"
    assert client.post(f"/admin/jobs/{job_id}/cancel", headers=ADMIN).json()["state"] == "cancelled", (
        "a second cancel changes nothing"
    )


def test_a_killed_training_fails_its_job_and_the_next_job_runs(running: Running, folder: Path) -> None:
    client = running.client
    job_id = submit(client, overrides=FOR_EVER)
    wait_for_epoch(client, job_id)
    waiting = SqliteLedger(Settings(store=folder / "models")).add(Job.new("other", {}), None)
    until(lambda: "sgf_retrain_epoch 0.0" not in client.get("/metrics").text)
    until(lambda: "sgf_retrain_jobs_waiting 1.0" in client.get("/metrics").text)
    before = counted(client, "cancelled")
    callers = [
        threading.Thread(target=lambda: client.post(f"/admin/jobs/{waiting.id}/cancel", headers=ADMIN)) for _ in range(4)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert job(client, waiting.id)["state"] == "cancelled"
    assert counted(client, "cancelled") == before + 1, "one job, counted once"
    until(lambda: "sgf_retrain_jobs_waiting 0.0" in client.get("/metrics").text)
    with busy_machine():  # the supervisor speeds up the exit
        for pid in training_processes(job_id):
            os.kill(pid, signal.SIGKILL)
        record = wait_for_end(client, job_id)
    assert (record["state"], record["version"], record["live"]) == ("failed", None, False)
    assert record["error"].startswith("the training process ended without a last event (signal 9)")
    live = client.get("/health/ready").json()["version"]
    job_id = submit(client, refresh=True, activate="if_better")
    record = wait_for_end(client, job_id)
    assert (record["state"], record["live"], record["parent"]) == ("succeeded", True, live)
    assert record["verdict"]["reason"] == "the weights are those of the live version"
    assert "succeeded" in refused(client.post(f"/admin/jobs/{job_id}/cancel", headers=ADMIN), 409, "conflict")


def test_after_the_leader_is_killed_another_worker_adopts_its_training(running: Running) -> None:
    client, parent = running.client, running.process.pid
    job_id = submit(client, overrides=FOR_EVER)
    wait_for_epoch(client, job_id)
    killed = worker_pids(parent)  # one process is the leader; the training must outlive it
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    until(lambda: len(set(worker_pids(parent)) - set(killed)) == 2)
    until(lambda: client.get("/health/ready").status_code == 200)
    before = job(client, job_id)
    assert before["state"] == "running"
    wait_for_epoch(client, job_id, beyond=before["epoch"])
    cancel(client, job_id)
    assert not training_processes(job_id)


def test_roll_back_and_activation(running: Running, folder: Path) -> None:
    client = running.client
    live = client.get("/health/ready").json()["version"]
    response = client.post("/admin/models/rollback", headers=ADMIN)
    versions = Store(folder / "models").model("demo")
    assert versions.live() != live
    assert response.json() == {"model": "demo", "live": versions.live(), "before": live}
    assert client.post("/admin/models/activate", json={"version": live}, headers=ADMIN).json()["live"] == live
    refused(client.post("/admin/models/activate", json={"version": 999}, headers=ADMIN), 404, "unknown_version")
    refused(client.post("/admin/models/activate", json={"version": "1"}, headers=ADMIN), 422, "invalid")


def test_a_killed_and_restarted_service_adopts_its_jobs(folder: Path, tmp_path: Path) -> None:
    store, root = tmp_path / "models", str(folder / "data")
    weak_model(store, folder / "data")
    with in_processes(store, data_root=root, training_seconds="600", **SETTINGS) as first:
        job_id = submit(first.client, overrides=FOR_EVER)
        wait_for_epoch(first.client, job_id)
        first.process.kill()
    with in_processes(store, data_root=root, **SETTINGS) as second:
        wait_for_epoch(second.client, job_id, beyond=job(second.client, job_id)["epoch"])
        second.process.kill()
    for pid in training_processes(job_id):
        os.kill(pid, signal.SIGKILL)  # simulates a crash of the machine
    training = JobFolder(Settings(store=store), job_id)
    until(lambda: not training.is_locked(), PATIENCE_SECONDS)  # slow: no supervisor speeds up its exit
    with in_processes(store, data_root=root, training_seconds="2", **SETTINGS) as third:
        record = wait_for_end(third.client, job_id)
        assert (record["state"], record["live"]) == ("failed", False)
        assert record["error"].startswith("the training process ended without a last event: it was killed")
        job_id = submit(third.client, overrides=FOR_EVER)
        record = wait_for_end(third.client, job_id)
        assert (record["state"], record["error"].split(",")[0]) == ("failed", "stopped after 2 s")
        assert not training_processes(job_id)
    left = {path.name for path in (store / "demo").iterdir()} - {".lock"}
    assert left == {"1", "CURRENT", "HISTORY"}, "no incomplete version"
