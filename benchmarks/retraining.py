"""/predict while a retraining runs on the same two cores: its p99 against a quiet machine's, and nothing refused."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.contest import duration
from benchmarks.http import known, publish, service
from benchmarks.load import Load, Stream, open_loop
from benchmarks.result import Result

SECONDS, ROUNDS, CONNECTIONS, RATE = 4.0, 9, 16, 300.0
NODES, BAR = 10_000, 3.0
TOKEN = secrets.token_hex(16)
ADMIN = {"authorization": f"Bearer {TOKEN}"}


def retraining() -> list[Result]:
    """Quiet and training turns alternate, so that a slow minute of the machine is everybody's; medians are compared."""
    with tempfile.TemporaryDirectory() as root:
        data = Path(root) / "data"
        _write_graph(data)
        settings = {"admin_token": TOKEN, "data_root": str(data), "training_threads": "1"}
        store = publish(f"{root}/models", NODES)
        # In one session with the load, or the training, which is idle only among its own, would hold up the load itself.
        with (
            service(store, own_session=False, **settings) as server,
            httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as client,
        ):
            asked = Stream(server.requests(known(10)), RATE, connections=CONNECTIONS)
            open_loop(server.port, asked, 2.0)
            quiet, busy = [], []
            for _ in range(ROUNDS):
                quiet.append(open_loop(server.port, asked, SECONDS))
                job = _training(client)
                busy.append(open_loop(server.port, asked, SECONDS))
                _stop(client, job)
    ratio = _p99(busy) / _p99(quiet)
    fine = all(set(load.statuses) == {200} for load in busy)
    claim = f"/predict, 10 known nodes at {RATE:.0f}/s, while a retraining runs: p99 against a quiet machine's"
    return [Result(claim, _shown(busy), _shown(quiet), ratio, f"<= {BAR:g}x", ratio <= BAR and fine)]


CONTESTS: tuple[Callable[[], list[Result]], ...] = (retraining,)


def _write_graph(folder: Path) -> None:
    """Twenty thousand nodes: an epoch takes a good part of a second, so training never rests."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    nodes = 20_000
    arrays = {"x": rng.normal(size=(nodes, 64)).astype(np.float32), "edge_index": rng.integers(0, nodes, (2, 10 * nodes))}
    np.savez(folder / "graph.npz", **arrays, y=rng.integers(0, 10, nodes))


def _training(client: httpx.Client) -> str:
    """A job whose epochs pass."""
    body = {"data": "graph.npz", "overrides": {"epochs": 1_000_000}, "activate": "never"}
    job: str = _answer(client.post("/admin/retrain", json=body, headers=ADMIN))["job"]
    end = time.monotonic() + 120
    while _answer(client.get(f"/admin/jobs/{job}", headers=ADMIN))["epoch"] < 2:
        if time.monotonic() > end:
            raise SystemExit("the training did not begin")
        time.sleep(0.2)
    return job


def _stop(client: httpx.Client, job: str) -> None:
    found = _answer(client.post(f"/admin/jobs/{job}/cancel", headers=ADMIN))
    while found["state"] == "running":
        time.sleep(0.1)
        found = _answer(client.get(f"/admin/jobs/{job}", headers=ADMIN))
    if found["state"] != "cancelled":
        raise SystemExit(f"the training was to be cancelled, and has {found['state']}: {found['error']}")


def _answer(response: httpx.Response) -> dict[str, Any]:
    answer: dict[str, Any] = response.raise_for_status().json()
    return answer


def _p99(loads: list[Load]) -> float:
    return float(np.median([load.quantile(0.99) for load in loads]))


def _shown(loads: list[Load]) -> str:
    p50, p99, worst = (float(np.median([load.quantile(share) for load in loads])) for share in (0.5, 0.99, 1.0))
    low, high = (float(np.quantile([load.quantile(0.99) for load in loads], share)) for share in (0.25, 0.75))
    count = sum(len(load.latencies) for load in loads)
    spread = f"{duration(low)} to {duration(high)}"
    return f"p50 {duration(p50)}, p99 {duration(p99)} ({spread}), max {duration(worst)}; {count:,} answers"
