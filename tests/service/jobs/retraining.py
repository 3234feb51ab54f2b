"""Shared by the tests of jobs: a small graph to train on, a weak live model, and calls of /admin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from model_store import Store
from service.jobs.training_process import restore_priority
from tests.service.serving import until
from tests.training.samples import labelled
from training import publish
from training.data.user_data import read_user_data
from training.fit.loop import TrainingConfig, train
from training.fit.settings import configurations

TOKEN = "t" * 20
ADMIN = {"authorization": f"Bearer {TOKEN}"}
QUICK = {"hidden": 8, "epochs": 40, "learning_rate": 0.02, "patience": 1_000_000}
FOR_EVER = {"hidden": 8, "epochs": 1_000_000, "patience": 1_000_000}
POLL_SECONDS, PATIENCE_SECONDS = 0.2, 240.0
CANCEL_SECONDS = float(os.environ.get("SGF_CANCEL_SECONDS", "5"))
"""The longest permitted duration of a cancel. The documented limit is 2 s, which `make soak` checks on a quiet machine."""


def data_root(folder: Path) -> Path:
    """graph.npz; shuffled.npz, whose labels are random except on the test nodes; symbolic links out of the folder."""
    root = folder / "data"
    root.mkdir()
    data = labelled(nodes=400)
    arrays = {"x": data.graph.features, "edge_index": data.graph.adjacency.edge_index(), "y": data.labels}
    np.savez(root / "graph.npz", **arrays)
    split = read_user_data(root / "graph.npz").split
    mixed = np.where(split == 2, data.labels, np.random.default_rng(0).permutation(data.labels))
    np.savez(root / "shuffled.npz", **(arrays | {"y": mixed, "split": split}))
    (folder / "secret.npz").write_bytes((root / "graph.npz").read_bytes())
    (root / "way_out.npz").symlink_to(folder / "secret.npz")
    (root / "tables").mkdir()
    (root / "tables" / "nodes.csv").symlink_to(folder / "secret.npz")
    (root / "circle").symlink_to(root / "circle")
    return root


def weak_model(store: Path, root: Path, job: str | None = None, activate: bool = True, epochs: int = 1) -> None:
    """Publishes a model. With one epoch, any trained model is better."""
    data = read_user_data(root / "graph.npz")
    config, training = configurations(data, {"hidden": 8, "epochs": epochs})
    trained = train(config, data, TrainingConfig(epochs=training.epochs))
    about = {"dataset": {"sha256": data.sha256()}, "training": {"split": data.drawn, "job": job}}
    publish(trained.model, data.graph, store=Store(store), name="demo", onnx=False, activate=activate, **about)


def submit(client: httpx.Client, key: str | None = None, **body: Any) -> str:
    response = retrain(client, key, **body)
    assert response.status_code == 202, response.text
    job: str = response.json()["job"]
    return job


def retrain(client: httpx.Client, key: str | None = None, **body: Any) -> httpx.Response:
    headers = ADMIN | ({"idempotency-key": key} if key else {})
    return client.post("/admin/retrain", json={"data": "graph.npz"} | body, headers=headers)


def job(client: httpx.Client, job_id: str) -> dict[str, Any]:
    response = client.get(f"/admin/jobs/{job_id}", headers=ADMIN)
    assert response.status_code == 200, response.text
    record: dict[str, Any] = response.json()
    return record


def cancel(client: httpx.Client, job_id: str) -> None:
    assert client.post(f"/admin/jobs/{job_id}/cancel", headers=ADMIN).status_code == 200
    assert wait_for_end(client, job_id)["state"] == "cancelled"


def wait_for_end(client: httpx.Client, job_id: str) -> dict[str, Any]:
    return _wait(client, job_id, lambda record: record["state"] not in ("queued", "running"))


def wait_for_epoch(client: httpx.Client, job_id: str, beyond: int = 0) -> dict[str, Any]:
    return _wait(client, job_id, lambda record: record["epoch"] > beyond)


def _wait(client: httpx.Client, job_id: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    record: dict[str, Any] = {}

    def poll() -> bool:
        record.update(job(client, job_id))
        return condition(record) or bool(time.sleep(POLL_SECONDS))

    with at_normal_priority(job_id):
        until(poll, PATIENCE_SECONDS)
    return record


@contextmanager
def at_normal_priority(job_id: str) -> Iterator[None]:
    """Raises the priority of a job's processes, as root. At idle priority they run only while no other test does."""
    left = threading.Event()

    def raise_priority() -> None:
        while not left.wait(POLL_SECONDS):
            for pid in training_processes(job_id):
                restore_priority(pid)

    thread = threading.Thread(target=raise_priority)
    thread.start()
    try:
        yield
    finally:
        left.set()
        thread.join()


def events(client: httpx.Client, job_id: str, after: int = 0) -> list[tuple[str, str, dict[str, Any]]]:
    """Number, name and content of each event until the stream ends."""
    received = []
    headers = ADMIN | {"last-event-id": str(after)}
    with at_normal_priority(job_id), client.stream("GET", f"/admin/jobs/{job_id}/events", headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for block in response.read().decode().split("\n\n"):
            if not block or block.startswith(":"):
                continue
            fields = dict(line.split(": ", 1) for line in block.splitlines())
            received.append((fields.get("id", ""), fields["event"], json.loads(fields["data"])))
    return received


def counted(client: httpx.Client, state: str) -> float:
    """How many jobs have entered this state, according to /metrics."""
    (line,) = [line for line in client.get("/metrics").text.splitlines() if f'jobs_total{{state="{state}"}}' in line]
    return float(line.split()[1])


def training_processes(job_id: str) -> list[int]:
    """The ids of the processes of this job."""
    return processes(f"--job={job_id}")


def processes(words: str) -> list[int]:
    """The ids of the processes with these words in their command line."""
    pids = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                command = (path / "cmdline").read_bytes()
            except OSError:
                continue
            if words.encode() in command:
                pids.append(int(path.name))
    return pids


def seconds_until(condition: Any, most: float = 60) -> float:
    start = time.monotonic()
    until(condition, most)
    return time.monotonic() - start


@contextmanager
def busy_machine() -> Iterator[None]:
    """Two busy loops for every processor, in the session of the test."""
    with ExitStack() as stack:
        for _ in range(2 * len(os.sched_getaffinity(0))):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(process.kill)
        yield
