"""Goodput, latency, memory and the cost of a refusal when more requests arrive than one worker can answer.

A sweep over offered rates, as multiples of the capacity (the goodput of a closed loop), and a longer run at twice the
capacity. The sweep runs up and down, so that every rate also follows a higher one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from benchmarks.load import Load, Stream, closed, open_loop
from benchmarks.memory import status_bytes
from benchmarks.results import Loads, Result, at_least, at_most, format_seconds, smaller
from benchmarks.servers import Server, service, serving
from benchmarks.workload import SMALL, Bodies, known_nodes, new_nodes

CONNECTIONS, CAPACITY_SECONDS, CAPACITY_TURNS = 64, 5.0, 3
FACTORS, SECONDS, ROUNDS = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0), 8.0, 2
LONG_SECONDS = 60.0
"""Duration of the run at twice the capacity. A run at half of the capacity precedes it, and another follows."""
TOLERABLE_LAG = 0.005
"""A larger lag of the generator is stated in the row."""
GOODPUT_BAR, P99_BAR, MEMORY_BAR = 0.85, 3.0, 1.05
Sweep = dict[float, Loads]


def overload() -> list[Result]:
    kinds = {"100 known nodes": known_nodes(100), "exact new node": new_nodes(SMALL)}
    with serving(SMALL, {"ours": service}) as servers:
        return [row for kind, bodies in kinds.items() for row in Overload(kind, servers["ours"], bodies).rows()]


class Overload:
    def __init__(self, kind: str, server: Server, bodies: Bodies) -> None:
        self._kind, self._server, self._requests = kind, server, server.requests(bodies)
        self._seeds = itertools.count(1)

    def rows(self) -> list[Result]:
        self._run_closed(2.0)
        at_capacity = Loads(self._run_closed(CAPACITY_SECONDS) for _ in range(CAPACITY_TURNS))
        self._capacity = at_capacity.rate
        sweep: Sweep = {factor: Loads() for factor in FACTORS}
        for number in range(ROUNDS):
            for factor in FACTORS if number % 2 == 0 else reversed(FACTORS):
                sweep[factor].append(self._run_open(factor, SECONDS))
        half = Loads([*sweep[0.5], self._run_open(0.5, SECONDS)])
        before = status_bytes("VmRSS", self._server.pid)
        long = self._run_open(2.0, LONG_SECONDS)
        after = status_bytes("VmRSS", self._server.pid)
        half.append(self._run_open(0.5, SECONDS))
        saturated = [*at_capacity, *(load for factor in FACTORS if factor > 1 for load in sweep[factor]), long]
        memory_claim = f"{self._kind}: resident memory of the worker after that, against before"
        return [
            self._capacity_row(at_capacity, sweep),
            *(self._sweep_row(factor, loads) for factor, loads in sweep.items()),
            *self._long_rows(Loads([long]), sweep, half),
            smaller(memory_claim, after, before, MEMORY_BAR),
            self._refusal_row(saturated),
        ]

    def _run_closed(self, seconds: float) -> Load:
        return self._check(closed(self._server.port, self._requests, CONNECTIONS, seconds, self._server.cpu_seconds))

    def _run_open(self, factor: float, seconds: float) -> Load:
        stream = Stream(self._requests, factor * self._capacity, seed=next(self._seeds))
        return self._check(open_loop(self._server.port, stream, seconds, self._server.cpu_seconds))

    def _check(self, load: Load) -> Load:
        if unexpected := set(load.statuses) - {200, 429}:
            raise SystemExit(f"{self._kind}: unexpected statuses {unexpected} in {load.statuses}")
        return load

    def _capacity_row(self, loads: Loads, sweep: Sweep) -> Result:
        """If the ratio is far from 1x, the measured capacity is wrong, and with it the offered rates of the sweep."""
        best = max(runs.rate for runs in sweep.values())
        claim = f"{self._kind}: capacity (closed loop, {CONNECTIONS} connections), against the best goodput of the sweep"
        return Result(claim, _describe(loads), f"{best:,.0f}/s", self._capacity / best)

    def _sweep_row(self, factor: float, loads: Loads) -> Result:
        offered = factor * self._capacity
        claim = f"{self._kind}, {factor:g}x the capacity offered: answers per second, against requests per second"
        return Result(claim, _describe(loads), f"{offered:,.0f}/s", loads.rate / offered)

    def _long_rows(self, long: Loads, sweep: Sweep, half: Loads) -> list[Result]:
        at = f"{self._kind}, 2x the capacity offered for {LONG_SECONDS:.0f} s"
        best_at = max(sweep, key=lambda factor: sweep[factor].rate)
        best, p99, usual = sweep[best_at].rate, long.quantile(0.99), half.quantile(0.99)
        refused = long[0].refused / long.statuses.total()
        p99s = sorted(load.quantile(0.99) for load in half)
        usual_text = f"{format_seconds(usual)} ({format_seconds(p99s[0])} to {format_seconds(p99s[-1])})"
        goodput = f"{at}: answers per second, against the best of the sweep"
        latency = f"{at}: p99 of the answers, against p99 at half of the capacity"
        share = f"{at}: share refused, against the share above the capacity"
        return [
            at_least(goodput, _describe(long), f"{best:,.0f}/s at {best_at:g}x", long.rate / best, GOODPUT_BAR),
            at_most(latency, format_seconds(p99), usual_text, p99 / usual, P99_BAR),
            Result(share, f"{refused:.1%}", "50%", refused / 0.5),
        ]

    def _refusal_row(self, saturated: Sequence[Load]) -> Result:
        """CPU time = answers * cost of an answer + refusals * cost of a refusal, fitted over runs of a saturated worker.

        Runs below the capacity are excluded: a worker with little load merges fewer requests, and an answer costs more.
        """
        counts = np.array([[load.statuses.get(200, 0), load.refused] for load in saturated], dtype=float)
        cpu = np.array([load.cpu_seconds for load in saturated])
        answer, refusal = np.linalg.lstsq(counts, cpu, rcond=None)[0]
        residual = float(np.abs(counts @ [answer, refusal] - cpu).max() / cpu.max())
        claim = f"{self._kind}: CPU time of the worker per refusal, against per answer"
        ours = f"{refusal * 1e6:.0f} us (largest residual of the fit {residual:.0%})"
        return Result(claim, ours, f"{answer * 1e6:.0f} us", refusal / answer)


def _describe(loads: Loads) -> str:
    """Goodput, latencies and CPU use as medians over the runs; refusals, and requests that waited, as sums."""
    cores = float(np.median([load.cpu_seconds / load.seconds for load in loads]))
    refused = loads.statuses[429] / loads.statuses.total()
    text = f"{loads.rate:,.0f}/s; {loads.latencies(0.5, 0.99)}; {cores:.2f} cores; {refused:.1%} refused"
    if refused:
        latencies = np.concatenate([load.refused_latencies for load in loads])
        p50, p99 = (format_seconds(float(np.quantile(latencies, share))) for share in (0.5, 0.99))
        text += f" (p50 {p50}, p99 {p99})"
    waited, lag = sum(load.waited for load in loads), max(load.lag for load in loads)
    if lag > TOLERABLE_LAG or waited:
        text += f"; generator: {format_seconds(lag)} late at p99, {waited:,} requests waited for a connection"
    return text
