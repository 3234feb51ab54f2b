"""From nothing to ready, step by step, and what a worker then has for itself, with a small graph and a large one."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from http.client import HTTPConnection

import numpy as np

from benchmarks.http import LARGE, SMALL, known, new, publish, service
from benchmarks.load import closed
from benchmarks.memory import status
from benchmarks.result import Result

ROUNDS = 5
LARGER = 2 * LARGE
STEPS = """
import json, sys, time
def timed(step):
    start = time.perf_counter()
    return step(), time.perf_counter() - start
app, imported = timed(lambda: __import__("service.app"))
from pathlib import Path
from model_store import Store
from service.engines.engine import engine_for
versions = Store(sys.argv[1]).model("bench")
opened, open_seconds = timed(lambda: versions.open(verify="sizes"))
opened.close()
snapshot, verified = timed(versions.open)
def warm():
    snapshot.probes.replay(engine_for(snapshot, "auto", "auto"), snapshot.manifest.probe_tolerance)
print(json.dumps({"import": imported, "open": open_seconds, "verify": verified - open_seconds, "warm": timed(warm)[1]}))
"""


def startup() -> list[Result]:
    with tempfile.TemporaryDirectory() as root:
        stores = {nodes: publish(f"{root}/{nodes}", nodes) for nodes in (SMALL, LARGE, LARGER)}
        steps = {nodes: [_steps(store) for _ in range(ROUNDS)] for nodes, store in stores.items()}
        ready: dict[int, list[float]] = {nodes: [] for nodes in stores}
        private: dict[int, list[int]] = {nodes: [] for nodes in stores}
        for _ in range(ROUNDS):
            for nodes, store in stores.items():
                start = time.perf_counter()
                with service(store) as server:  # which is there once it answers a question
                    _wait_until_ready(server.port)
                    ready[nodes].append(time.perf_counter() - start)
                    for bodies in (known(100), new(nodes)):
                        closed(server.port, server.requests(bodies), 16, 0.5)
                    private[nodes].append(status("RssAnon", server.pid))
    told = {nodes: f"{np.median(ready[nodes]):.2f} s ({_split(steps[nodes])})" for nodes in stores}
    slower = float(np.median(ready[LARGE]) / np.median(ready[SMALL]))
    memory = {nodes: float(np.median(private[nodes])) for nodes in stores}
    sizes = f"N = {LARGE:,} against N = {SMALL:,}"
    return [
        Result(f"from start to ready: {sizes}", told[LARGE], told[SMALL], slower, "", True),
        _private(memory, LARGE, SMALL, None),
        _private(memory, LARGER, LARGE, 1.02),  # of whatever grows with the graph this is the half
    ]


def _private(memory: dict[int, float], nodes: int, fewer: int, bar: float | None) -> Result:
    claim = f"private memory of a worker after load: N = {nodes:,} against N = {fewer:,}"
    shown = f"{memory[nodes] / 1e6:.1f} MB", f"{memory[fewer] / 1e6:.1f} MB"
    growth = memory[nodes] / memory[fewer]
    return Result(claim, *shown, growth, f"<= {bar:g}x" if bar else "", not bar or growth <= bar)


CONTESTS: tuple[Callable[[], list[Result]], ...] = (startup,)


def _steps(store: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", STEPS, store], capture_output=True, text=True, check=True)
    steps: dict[str, float] = json.loads(done.stdout)
    return steps


def _split(runs: list[dict[str, float]]) -> str:
    return ", ".join(f"{step} {max(0.0, np.median([run[step] for run in runs])):.2f}" for step in runs[0])


def _wait_until_ready(port: int) -> None:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/health/ready")
    if connection.getresponse().status != 200:
        raise SystemExit("a service that answers questions does not call itself ready")
