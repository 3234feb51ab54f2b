"""The cost of drift and verification: CPU time per answer, with and without them, in turns.

The CPU time of the monitoring process counts, except for its start, which ends before the first turn.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.load import closed
from benchmarks.results import Result, at_most
from benchmarks.servers import Server, service
from benchmarks.workload import SMALL, known_nodes, new_nodes, publish

ROUNDS, SECONDS, CONNECTIONS = 7, 3.0, 8
WARMUP_ANSWERS = 1200
BAR = 1.02
UNMONITORED = "benchmarks.unmonitored:Protocol"


def monitoring() -> list[Result]:
    with tempfile.TemporaryDirectory() as root:
        store = publish(root, SMALL)
        with service(store) as watched, service(store, protocol=UNMONITORED) as plain:
            bodies = {"known node": known_nodes(1), "exact new node": new_nodes(SMALL)}
            return [_compare(name, watched, plain, bodies[name]) for name in bodies]


def _compare(name: str, watched: Server, plain: Server, bodies: list[bytes]) -> Result:
    for server in (watched, plain):
        for number in range(WARMUP_ANSWERS):
            server.ask(bodies[number % len(bodies)])
    time.sleep(3)  # until the monitoring process has started and opened the version
    seconds: dict[str, list[float]] = {"watched": [], "plain": []}
    for _ in range(ROUNDS):
        for kind, server in (("watched", watched), ("plain", plain)):
            before = _cpu_seconds(server)
            load = closed(server.port, server.requests(bodies), CONNECTIONS, SECONDS)
            seconds[kind].append((_cpu_seconds(server) - before) / len(load.latencies))
    ratios = np.array(seconds["watched"]) / np.array(seconds["plain"])
    ours, theirs = (f"{1e6 * np.median(seconds[kind]):.1f} us" for kind in ("watched", "plain"))
    claim = f"{name}: CPU time per answer with drift and verification, against that without them"
    return at_most(claim, ours, theirs, float(np.median(ratios)), BAR)


def _cpu_seconds(server: Server) -> float:
    """Of the worker and its child processes."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    return sum(Server(0, process).cpu_seconds() for process in (server.pid, *map(int, children)))
