"""The time from start to ready, step by step, and the private memory of a worker, by the size of the graph."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from http.client import HTTPConnection

import numpy as np

from benchmarks.load import closed
from benchmarks.memory import status_bytes
from benchmarks.results import Result, smaller
from benchmarks.servers import service
from benchmarks.workload import LARGE, SMALL, known_nodes, new_nodes, publish

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
                with service(store) as server:  # returns when the service has answered a question
                    _require_ready(server.port)
                    ready[nodes].append(time.perf_counter() - start)
                    for bodies in (known_nodes(100), new_nodes(nodes)):
                        closed(server.port, server.requests(bodies), 16, 0.5)
                    private[nodes].append(status_bytes("RssAnon", server.pid))
    descriptions = {nodes: f"{np.median(ready[nodes]):.2f} s ({_describe_steps(steps[nodes])})" for nodes in stores}
    ratio = float(np.median(ready[LARGE]) / np.median(ready[SMALL]))
    memory = {nodes: float(np.median(private[nodes])) for nodes in stores}
    sizes = f"N = {LARGE:,} against N = {SMALL:,}"
    return [
        Result(f"from start to ready: {sizes}", descriptions[LARGE], descriptions[SMALL], ratio),
        _compare_memory(memory, LARGE, SMALL, None),
        _compare_memory(memory, LARGER, LARGE, 1.02),  # private memory must not grow with the graph
    ]


def _compare_memory(memory: dict[int, float], nodes: int, fewer: int, bar: float | None) -> Result:
    claim = f"private memory of a worker after load: N = {nodes:,} against N = {fewer:,}"
    return smaller(claim, memory[nodes], memory[fewer], bar, digits=1)


def _steps(store: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", STEPS, store], capture_output=True, text=True, check=True)
    steps: dict[str, float] = json.loads(done.stdout)
    return steps


def _describe_steps(runs: list[dict[str, float]]) -> str:
    return ", ".join(f"{step} {max(0.0, np.median([run[step] for run in runs])):.2f}" for step in runs[0])


def _require_ready(port: int) -> None:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/health/ready")
    status_code = connection.getresponse().status
    connection.close()
    if status_code != 200:
        raise SystemExit(f"the service answers questions, but /health/ready has the status {status_code}, expected 200")
