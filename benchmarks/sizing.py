"""The CPU and memory that a replica needs: the figures of "How much it needs" in docs/deployment.md.

python -m benchmarks.sizing      trains the demo, puts one worker under load, without a cache, and prints the figures
"""

from __future__ import annotations

import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import urlopen

from benchmarks.load import Stream, closed, open_loop
from benchmarks.memory import status_bytes
from benchmarks.results import format_seconds
from benchmarks.servers import Server, descendants, service
from benchmarks.workload import Bodies, new_node
from training.data import datasets

SECONDS, CONNECTIONS, SAMPLE_SECONDS = 10.0, 64, 0.2
CLIENTS = 16
"""Connections of a closed loop: enough to saturate the worker, too few for a queue."""


def main() -> None:
    with tempfile.TemporaryDirectory() as store:
        train = [sys.executable, "-m", "training", "--recipe", "digits", "--activate", "--quiet", "--store", store]
        subprocess.run(train, check=True, stdout=subprocess.DEVNULL)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        with service(store) as server:
            new, known = server.requests(new_digits()), server.requests(known_digits())
            closed(server.port, new, CLIENTS, 2.0)
            print("| load | in flight (mean) | CPU | p50 | p99 |\n|---|---|---|---|---|")
            for rate in (200, 500, 1000):
                print_row(f"{rate:,} new nodes a second", server, new, rate)
            print_row(f"{CLIENTS} clients without pauses", server, new)
            print_row("1,000 requests a second for known nodes", server, known, 1000)
            print_row(f"{CLIENTS} clients without pauses, known nodes", server, known)
            one_worker = describe_memory(server.pid)
        with service(store, workers="2") as server:
            closed(server.port, server.requests(new_digits()), CLIENTS, SECONDS)
            workers = [describe_memory(pid) for pid in descendants(server.pid)]
    print(f"one worker: {one_worker}; with SGF_WORKERS=2, each process: {', '.join(workers)}")
    print(f"training the demo: peak {peak / 1e6:.0f} MB")


def print_row(claim: str, server: Server, requests: Bodies, rate: float | None = None) -> None:
    """Prints the figures of a run at this rate, or of a closed loop."""
    before = server.cpu_seconds()
    with sampled_queue_depth(server.port) as depths:
        if rate is None:
            measured = closed(server.port, requests, CLIENTS, SECONDS)
        else:
            measured = open_loop(server.port, Stream(requests, rate, connections=CONNECTIONS), SECONDS)
    cores = (server.cpu_seconds() - before) / measured.seconds
    if set(measured.statuses) != {200}:
        raise SystemExit(f"{claim}: answered {measured.statuses}")
    times = " | ".join(format_seconds(measured.quantile(share)) for share in (0.5, 0.99))
    print(f"| {claim}: {measured.rate:,.0f} a second | {statistics.mean(depths):.1f} | {cores:.2f} | {times} |")


@contextmanager
def sampled_queue_depth(port: int) -> Iterator[list[float]]:
    """Samples sgf_queue_depth, which the autoscaler uses, as Prometheus would."""
    depths: list[float] = []
    done = threading.Event()

    def sample() -> None:
        while not done.wait(SAMPLE_SECONDS):
            page = urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()  # our own server
            depths.append(float(re.search(r"^sgf_queue_depth (\S+)", page, re.MULTILINE)[1]))  # type: ignore[index]  # always present

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield depths
    finally:
        done.set()
        thread.join()


def describe_memory(pid: int) -> str:
    private, resident = (status_bytes(field, pid) / 1e6 for field in ("RssAnon", "VmRSS"))
    return f"{private:.0f} MB private, {resident:.0f} MB with mapped files"


def new_digits() -> Bodies:
    """Returns the demo's own digits as new nodes, each with the neighbours that it has in the graph."""
    graph = datasets.load("digits", 0, 0).graph
    starts, others = graph.adjacency.indptr, graph.adjacency.indices
    return [new_node(graph.features[node], others[starts[node] : starts[node + 1]]) for node in range(500)]


def known_digits() -> Bodies:
    return [b'{"nodes": [%d]}' % node for node in range(500)]


if __name__ == "__main__":
    main()
