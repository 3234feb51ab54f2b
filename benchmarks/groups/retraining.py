"""/predict while a retraining runs on the same two cores: its p99 against a quiet machine's, without refusals."""

from __future__ import annotations

import secrets
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.load import Stream, open_loop
from benchmarks.results import Loads, Result, at_most, format_seconds
from benchmarks.servers import service
from benchmarks.workload import known_nodes, publish

SECONDS, ROUNDS, CONNECTIONS, RATE = 4.0, 9, 16, 300.0
NODES, BAR = 10_000, 3.0
TOKEN = secrets.token_hex(16)
ADMIN = {"authorization": f"Bearer {TOKEN}"}


def retraining() -> list[Result]:
    """Quiet and training turns alternate, so that a slow minute of the machine affects both."""
    with tempfile.TemporaryDirectory() as root:
        data = Path(root) / "data"
        _write_graph(data)
        settings = {"admin_token": TOKEN, "data_root": str(data), "training_threads": "1"}
        store = publish(f"{root}/models", NODES)
        # In the session of the load: idle priority has an effect only within a session. In another one, the training would
        # get as much CPU time as the load.
        with (
            service(store, own_session=False, **settings) as server,
            httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as client,
        ):
            stream = Stream(server.requests(known_nodes(10)), RATE, connections=CONNECTIONS)
            open_loop(server.port, stream, 2.0)
            quiet, busy = Loads(), Loads()
            for _ in range(ROUNDS):
                quiet.append(open_loop(server.port, stream, SECONDS))
                job = _start_training(client)
                busy.append(open_loop(server.port, stream, SECONDS))
                _stop(client, job)
    ratio = busy.quantile(0.99) / quiet.quantile(0.99)
    claim = f"/predict, 10 known nodes at {RATE:.0f}/s, while a retraining runs: p99 against a quiet machine's"
    return [at_most(claim, _describe(busy), _describe(quiet), ratio, BAR, valid=not busy.unanswered)]


def _write_graph(folder: Path) -> None:
    """Writes a graph of 20,000 nodes: an epoch takes a large part of a second, so that training is never idle."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    nodes = 20_000
    arrays = {"x": rng.normal(size=(nodes, 64)).astype(np.float32), "edge_index": rng.integers(0, nodes, (2, 10 * nodes))}
    np.savez(folder / "graph.npz", **arrays, y=rng.integers(0, 10, nodes))


def _start_training(client: httpx.Client) -> str:
    """Returns the id of a job after its second epoch."""
    body = {"data": "graph.npz", "overrides": {"epochs": 1_000_000}, "activate": "never"}
    job: str = _answer(client.post("/admin/retrain", json=body, headers=ADMIN))["job"]
    end = time.monotonic() + 120
    while _answer(client.get(f"/admin/jobs/{job}", headers=ADMIN))["epoch"] < 2:
        if time.monotonic() > end:
            raise SystemExit("the training did not reach its second epoch within 120 s")
        time.sleep(0.2)
    return job


def _stop(client: httpx.Client, job: str) -> None:
    record = _answer(client.post(f"/admin/jobs/{job}/cancel", headers=ADMIN))
    while record["state"] == "running":
        time.sleep(0.1)
        record = _answer(client.get(f"/admin/jobs/{job}", headers=ADMIN))
    if record["state"] != "cancelled":
        raise SystemExit(f"the training is {record['state']}, expected cancelled: {record['error']}")


def _answer(response: httpx.Response) -> dict[str, Any]:
    answer: dict[str, Any] = response.raise_for_status().json()
    return answer


def _describe(loads: Loads) -> str:
    low, high = np.quantile([load.quantile(0.99) for load in loads], [0.25, 0.75])
    spread = f"{format_seconds(float(low))} to {format_seconds(float(high))}"
    count = sum(len(load.latencies) for load in loads)
    return f"{loads.latencies(0.5, 0.99)} ({spread}), {loads.latencies(1.0)}; {count:,} answers"
