"""Twice as many requests as a worker can answer, for a minute: what it takes stays quick, the rest is refused at once."""

from __future__ import annotations

import tempfile
from collections.abc import Callable

import numpy as np

from benchmarks.contest import duration
from benchmarks.http import SMALL, known, publish, service
from benchmarks.load import closed, open_loop
from benchmarks.memory import status
from benchmarks.result import Result

SECONDS, CONNECTIONS = 60.0, 64


def overload() -> list[Result]:
    with tempfile.TemporaryDirectory() as root, service(publish(root, SMALL)) as server:
        asked, port = server.requests(known(100)), server.port
        closed(port, asked, 16, 2.0)
        capacity = closed(port, asked, 16, 5.0).rate
        quiet = open_loop(port, asked, CONNECTIONS, 10.0, capacity / 2)
        before = status("VmRSS", server.pid)
        loaded = open_loop(port, asked, CONNECTIONS, SECONDS, 2 * capacity)
        after = status("VmRSS", server.pid)
    shed = loaded.statuses.get(429, 0)
    fine = shed > 0 and not set(loaded.statuses) - {200, 429}
    ratio, growth = loaded.quantile(0.99) / quiet.quantile(0.99), after / before
    refused = duration(float(np.quantile(loaded.refused_latencies, 0.99))) if shed else "-"
    told = f"{duration(loaded.quantile(0.99))}; {len(loaded.latencies):,} answered, {shed:,} refused (p99 {refused})"
    claim = (
        f"twice the {capacity:,.0f}/s that one worker answers, for {SECONDS:.0f} s: p99 of what it took, against p99 at half"
    )
    memory = f"{after / 1e6:.0f} MB", f"{before / 1e6:.0f} MB"
    return [
        Result(claim, told, duration(quiet.quantile(0.99)), ratio, "<= 3x", ratio <= 3 and fine),
        Result("resident memory of the worker after that, against before", *memory, growth, "<= 1.05x", growth <= 1.05),
    ]


CONTESTS: tuple[Callable[[], list[Result]], ...] = (overload,)
