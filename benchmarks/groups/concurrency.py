"""Goodput, latency and refusals by the number of connections, in a closed loop, beside an empty FastAPI endpoint."""

from __future__ import annotations

from benchmarks.load import closed
from benchmarks.results import Loads, Result, at_least, at_most, format_seconds, higher_rate
from benchmarks.servers import Server, floor, service, serving
from benchmarks.workload import SMALL, known_nodes
from service.settings import Settings

COUNTS, BASE, ROUNDS, SECONDS = (16, 32, 64, 80, 96, 128, 256, 1000), 64, 5, 3.0
GOODPUT_BARS = {80: 0.9, 128: 0.9, 256: 0.9, 1000: 0.75}
P99_BAR, AFTERWARDS_BAR = 3.0, 0.95
QUEUE_SECONDS = Settings().max_queue_seconds
AFTERWARDS = -BASE
"""The key of the second run with BASE connections, right after the run with 1,000: it shows lasting effects of that run."""
LoadsByCount = dict[int, Loads]


def concurrency() -> list[Result]:
    with serving(SMALL, {"ours": service, "empty": floor}) as servers:
        loads = _take_turns(servers)
    ours, empty = loads["ours"], loads["empty"]
    return [
        *_rows("known node", ours, GOODPUT_BARS, P99_BAR),
        _refusals(ours),
        _afterwards("known node", ours, AFTERWARDS_BAR),
        *_rows("empty endpoint", empty, {}, None),
        _afterwards("empty endpoint", empty, None),
    ]


def _take_turns(servers: dict[str, Server]) -> dict[str, LoadsByCount]:
    loads: dict[str, LoadsByCount] = {name: {count: Loads() for count in (*COUNTS, AFTERWARDS)} for name in servers}
    requests = {name: server.requests(known_nodes(1)) for name, server in servers.items()}
    for name, server in servers.items():
        closed(server.port, requests[name], BASE, 1.0)
    for _ in range(ROUNDS):
        for name, server in servers.items():
            for count in (*COUNTS, AFTERWARDS):  # AFTERWARDS follows 1,000 connections to the same server
                loads[name][count].append(closed(server.port, requests[name], abs(count), SECONDS))
    return loads


def _rows(kind: str, loads: LoadsByCount, goodput_bars: dict[int, float], p99_bar: float | None) -> list[Result]:
    """At capacity, the mean latency of a request is the number of connections / capacity."""
    capacity, rows = loads[BASE].rate, []
    for count in COUNTS:
        if count != BASE:
            claim = f"{kind}, {count:,} connections: answers per second, against {BASE}"
            ratio = loads[count].rate / capacity
            rows.append(at_least(claim, loads[count], f"{capacity:,.0f}/s", ratio, goodput_bars.get(count)))
    for count in COUNTS:
        p99, mean = loads[count].quantile(0.99), count / capacity
        claim = f"{kind}, {count:,} connections: p99, against connections / capacity"
        rows.append(at_most(claim, format_seconds(p99), format_seconds(mean), p99 / mean, p99_bar))
    return rows


def _refusals(loads: LoadsByCount) -> Result:
    """Counts only runs in which a request waits for less than the time limit of the queue."""
    counts = [count for count in COUNTS if count / loads[BASE].rate < QUEUE_SECONDS]
    unanswered = sum(loads[count].unanswered for count in counts)
    requests = sum(loads[count].statuses.total() for count in counts)
    limit = f"up to {max(counts):,} connections (fewer than {QUEUE_SECONDS:g} s x capacity)"
    claim = f"known node, {limit}: refused or lost, of all requests"
    return at_most(claim, f"{unanswered:,}", f"{requests:,}", unanswered / requests, 0)


def _afterwards(kind: str, loads: LoadsByCount, bar: float | None) -> Result:
    claim = f"{kind}, {BASE} connections right after {max(COUNTS):,}: answers per second, against before"
    return higher_rate(claim, loads[AFTERWARDS], loads[BASE], bar)
