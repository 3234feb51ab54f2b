"""Twice as many requests as a worker can answer, for a minute: what it takes stays quick, the rest is refused at once."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable

import numpy as np

from benchmarks.contest import duration
from benchmarks.http import SMALL, known, new, publish, service
from benchmarks.load import closed, open_loop
from benchmarks.memory import status
from benchmarks.result import Result
from benchmarks.servers import Server

SECONDS, CONNECTIONS = 60.0, 64
QUIET_TURNS, QUIET_SECONDS = 3, 4.0
"""Before the minute, and as many after it: a slow moment of the machine does not decide what quiet is."""


def overload() -> list[Result]:
    with tempfile.TemporaryDirectory() as root, service(publish(root, SMALL)) as server:
        return _of("100 known nodes", server, known(100)) + _of("an exact new node", server, new(SMALL))


def _of(kind: str, server: Server, bodies: list[bytes]) -> list[Result]:
    asked, port = server.requests(bodies), server.port
    closed(port, asked, 16, 2.0)
    capacity = closed(port, asked, 16, 5.0).rate
    quiet = [_p99_of_a_turn(port, asked, capacity / 2) for _ in range(QUIET_TURNS)]
    before = status("VmRSS", server.pid)
    loaded = open_loop(port, asked, CONNECTIONS, SECONDS, 2 * capacity)
    after = status("VmRSS", server.pid)
    time.sleep(2)  # until a crowd is let in again
    quiet += [_p99_of_a_turn(port, asked, capacity / 2) for _ in range(QUIET_TURNS)]
    shed = loaded.statuses.get(429, 0)
    fine = shed > 0 and not set(loaded.statuses) - {200, 429}
    usual = float(np.median(quiet))
    ratio, growth = loaded.quantile(0.99) / usual, after / before
    refused = duration(float(np.quantile(loaded.refused_latencies, 0.99))) if shed else "-"
    told = f"{duration(loaded.quantile(0.99))}; {len(loaded.latencies):,} answered, {shed:,} refused (p99 {refused})"
    claim = f"{kind}, asked for at twice the rate that one worker answers, for {SECONDS:.0f} s"
    against = f"{duration(usual)} ({duration(min(quiet))} to {duration(max(quiet))})"
    memory = f"{after / 1e6:.0f} MB", f"{before / 1e6:.0f} MB"
    rates = f"{loaded.rate:,.0f}/s", f"{capacity:,.0f}/s"
    return [
        Result(f"{claim}: p99 of what it took, against p99 at half", told, against, ratio, "<= 3x", ratio <= 3 and fine),
        Result("answers per second meanwhile, against all that it can", *rates, loaded.rate / capacity, "", True),
        Result("resident memory of the worker after that, against before", *memory, growth, "<= 1.05x", growth <= 1.05),
    ]


def _p99_of_a_turn(port: int, asked: list[bytes], rate: float) -> float:
    return open_loop(port, asked, CONNECTIONS, QUIET_SECONDS, rate).quantile(0.99)


CONTESTS: tuple[Callable[[], list[Result]], ...] = (overload,)
