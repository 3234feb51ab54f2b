"""Goodput, latency and refusals by the number of connections, in a closed loop; beside it an empty FastAPI endpoint.

Numbers of connections and servers take turns over several rounds; medians are compared. After 1,000 connections each round
has another turn with 64: what many connections leave behind.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np

from benchmarks.contest import duration
from benchmarks.http import SMALL, Measured, floor, known, publish, service
from benchmarks.load import closed
from benchmarks.result import Result
from benchmarks.servers import Server
from service.settings import Settings

COUNTS, BASE, ROUNDS, SECONDS = (16, 32, 64, 80, 96, 128, 256, 1000), 64, 5, 3.0
GOODPUT_BARS = {80: 0.9, 128: 0.9, 256: 0.9, 1000: 0.75}
P99_BAR, AFTERWARDS_BAR = 3.0, 0.95
QUEUE_SECONDS = getattr(Settings(), "max_queue_seconds", 0.1)
AFTERWARDS = -BASE
"""In place of a number of connections: 64 again, right after 1,000."""
Measurements = dict[int, Measured]


def concurrency() -> list[Result]:
    with tempfile.TemporaryDirectory() as root, ExitStack() as stack:
        store = publish(root, SMALL)
        servers = stack.enter_context(service(store)), stack.enter_context(floor("floor", store))
        ours, empty = _take_turns(servers)
    rows = [_goodput("known node", ours, count, GOODPUT_BARS.get(count)) for count in COUNTS if count != BASE]
    rows += [_p99("known node", ours, count, P99_BAR) for count in COUNTS]
    rows += [_refusals(ours), _afterwards("known node", ours, AFTERWARDS_BAR)]
    rows += [_goodput("empty endpoint", empty, count, None) for count in COUNTS if count != BASE]
    rows += [_p99("empty endpoint", empty, count, None) for count in COUNTS]
    return [*rows, _afterwards("empty endpoint", empty, None)]


CONTESTS: tuple[Callable[[], list[Result]], ...] = (concurrency,)


def _take_turns(servers: tuple[Server, Server]) -> list[Measurements]:
    measured: list[Measurements] = [{count: Measured([]) for count in (*COUNTS, AFTERWARDS)} for _ in servers]
    requests = [server.requests(known(1)) for server in servers]
    for server, prepared in zip(servers, requests, strict=True):
        closed(server.port, prepared, BASE, 1.0)
    for _ in range(ROUNDS):
        for server, prepared, turns in zip(servers, requests, measured, strict=True):
            for count in (*COUNTS, AFTERWARDS):  # 64 again comes right after 1,000, of the same server
                turns[count].loads.append(closed(server.port, prepared, abs(count), SECONDS))
    return measured


def _goodput(kind: str, turns: Measurements, count: int, bar: float | None) -> Result:
    claim = f"{kind}, {count:,} connections: answers per second, against {BASE}"
    ratio = turns[count].rate / turns[BASE].rate
    shown = str(turns[count]), f"{turns[BASE].rate:,.0f}/s"
    return Result(claim, *shown, ratio, f">= {bar:g}x" if bar else "", not bar or ratio >= bar)


def _p99(kind: str, turns: Measurements, count: int, bar: float | None) -> Result:
    """With all of the capacity in use, a request takes the number of connections / capacity on average."""
    p99 = float(np.median([load.quantile(0.99) for load in turns[count].loads]))
    mean = count / turns[BASE].rate
    claim = f"{kind}, {count:,} connections: p99, against connections / capacity"
    return Result(
        claim, duration(p99), duration(mean), p99 / mean, f"<= {bar:g}x" if bar else "", not bar or p99 <= bar * mean
    )


def _refusals(turns: Measurements) -> Result:
    """Of those runs in which a request waits for less than the bound of the queue."""
    counts = [count for count in COUNTS if count / turns[BASE].rate < QUEUE_SECONDS]
    statuses = [load.statuses for count in counts for load in turns[count].loads]
    requests = sum(sum(status.values()) for status in statuses)
    others = requests - sum(status.get(200, 0) for status in statuses)
    up_to = f"up to {max(counts):,} connections (fewer than {QUEUE_SECONDS:g} s x capacity)"
    claim = f"known node, {up_to}: refused or lost, of all requests"
    return Result(claim, f"{others:,}", f"{requests:,}", others / requests, "<= 0x", not others)


def _afterwards(kind: str, turns: Measurements, bar: float | None) -> Result:
    ratio = turns[AFTERWARDS].rate / turns[BASE].rate
    claim = f"{kind}, {BASE} connections right after {max(COUNTS):,}: answers per second, against before"
    shown = str(turns[AFTERWARDS]), str(turns[BASE])
    return Result(claim, *shown, ratio, f">= {bar:g}x" if bar else "", not bar or ratio >= bar)
