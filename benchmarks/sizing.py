"""How much a replica needs: the figures of "How much it needs" in docs/deployment.md, which resource requests follow.

python -m benchmarks.sizing trains the demo, loads one worker of the service with its graph, without a cache, and prints all.
"""

from __future__ import annotations

import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.request import urlopen

import numpy as np

from benchmarks.contest import duration
from benchmarks.http import service
from benchmarks.load import Load, Stream, closed, open_loop
from benchmarks.memory import status
from benchmarks.servers import Server, descendants
from training.data import datasets

SECONDS, CONNECTIONS, LOOK_SECONDS = 10.0, 64, 0.2
CALLERS = 16
"""Connections of a closed loop: enough to use all of the worker, too few for a queue."""


def main() -> None:
    with tempfile.TemporaryDirectory() as store:
        train = [sys.executable, "-m", "training", "--recipe", "digits", "--activate", "--quiet", "--store", store]
        subprocess.run(train, check=True, stdout=subprocess.DEVNULL)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        with service(store) as server:
            new, known = server.requests(new_digits()), server.requests(known_digits())
            closed(server.port, new, CALLERS, 2.0)
            print("| load | in hand (mean) | CPU | p50 | p99 |\n|---|---|---|---|---|")
            for rate in (200, 500, 1000):
                row(f"{rate:,} new nodes a second", server, at_rate(server, new, rate))
            row(f"{CALLERS} callers without a pause", server, at_once(server, new))
            row("1,000 requests a second for known nodes", server, at_rate(server, known, 1000))
            row(f"{CALLERS} callers without a pause, known nodes", server, at_once(server, known))
            told = memory(server.pid)
        with service(store, workers="2") as server:
            closed(server.port, server.requests(new_digits()), CALLERS, SECONDS)
            workers = [memory(pid) for pid in descendants(server.pid)]
    print(f"one worker: {told}; with SGF_WORKERS=2, each process: {', '.join(workers)}")
    print(f"training the demo: peak {peak / 1e6:.0f} MB")


def at_rate(server: Server, requests: list[bytes], rate: float) -> Callable[[], Load]:
    return lambda: open_loop(server.port, Stream(requests, rate, connections=CONNECTIONS), SECONDS)


def at_once(server: Server, requests: list[bytes]) -> Callable[[], Load]:
    return lambda: closed(server.port, requests, CALLERS, SECONDS)


def row(claim: str, server: Server, load: Callable[[], Load]) -> None:
    before = server.cpu_seconds()
    with in_hand(server.port) as looks:
        found = load()
    cores = (server.cpu_seconds() - before) / found.seconds
    if set(found.statuses) != {200}:
        raise SystemExit(f"{claim}: answered {found.statuses}")
    times = " | ".join(duration(found.quantile(share)) for share in (0.5, 0.99))
    print(f"| {claim}: {found.rate:,.0f} a second | {statistics.mean(looks):.1f} | {cores:.2f} | {times} |")


@contextmanager
def in_hand(port: int) -> Iterator[list[float]]:
    """sgf_queue_depth, which the autoscaler goes by, looked at again and again as Prometheus would."""
    looks: list[float] = []
    done = threading.Event()

    def look() -> None:
        while not done.wait(LOOK_SECONDS):
            page = urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()  # our own server
            looks.append(float(re.search(r"^sgf_queue_depth (\S+)", page, re.MULTILINE)[1]))  # type: ignore[index]  # it is always there

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield looks
    finally:
        done.set()
        thread.join()


def memory(pid: int) -> str:
    return f"{status('RssAnon', pid) / 1e6:.0f} MB of its own, {status('VmRSS', pid) / 1e6:.0f} MB with what it maps"


def new_digits() -> list[bytes]:
    """The demo's own digits, each as if it were new, with the neighbours that it has."""
    graph = datasets.load("digits", 0, 0).graph
    starts, others = graph.adjacency.indptr, graph.adjacency.indices
    return [
        json.dumps(
            {
                "new_nodes": [
                    {
                        "id": "a",
                        "features": np.asarray(graph.features[node]).tolist(),
                        "neighbors": others[starts[node] : starts[node + 1]].tolist(),
                    }
                ]
            }
        ).encode()
        for node in range(500)
    ]


def known_digits() -> list[bytes]:
    return [json.dumps({"nodes": [node]}).encode() for node in range(500)]


if __name__ == "__main__":
    main()
