"""Goodput, latency, memory and the cost of a refusal when more requests arrive than one worker can answer.

A sweep over offered rates, as multiples of the capacity, and a longer run at twice the capacity. The capacity is the goodput
of a closed loop. The sweep runs forth and back, so that every rate also follows a higher one.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.contest import duration
from benchmarks.http import SMALL, known, new, publish, service
from benchmarks.load import Load, Stream, closed, open_loop
from benchmarks.memory import status
from benchmarks.result import Result
from benchmarks.servers import Server

CONNECTIONS, CAPACITY_SECONDS, CAPACITY_TURNS = 64, 5.0, 3
FACTORS, SECONDS, ROUNDS = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0), 8.0, 2
LONG_SECONDS = 60.0
"""At twice the capacity, between two turns at half of it."""
TOLERABLE_LAG = 0.005
"""A generator that is later than this is named in the row."""
GOODPUT_BAR, P99_BAR, MEMORY_BAR = 0.85, 3.0, 1.05


def overload() -> list[Result]:
    with tempfile.TemporaryDirectory() as root, service(publish(root, SMALL)) as server:
        kinds = {"100 known nodes": known(100), "exact new node": new(SMALL)}
        return [row for kind, bodies in kinds.items() for row in Overload(kind, server, bodies).rows()]


CONTESTS: tuple[Callable[[], list[Result]], ...] = (overload,)


class Overload:
    def __init__(self, kind: str, server: Server, bodies: list[bytes]) -> None:
        self._kind, self._server, self._requests = kind, server, server.requests(bodies)
        self._seeds = itertools.count(1)

    def rows(self) -> list[Result]:
        self._closed(2.0)
        at_capacity = [self._closed(CAPACITY_SECONDS) for _ in range(CAPACITY_TURNS)]
        self._capacity = _goodput(at_capacity)
        sweep: dict[float, list[Load]] = {factor: [] for factor in FACTORS}
        for number in range(ROUNDS):
            for factor in FACTORS if number % 2 == 0 else reversed(FACTORS):
                sweep[factor].append(self._open(factor, SECONDS))
        half = [*sweep[0.5], self._open(0.5, SECONDS)]
        before = status("VmRSS", self._server.pid)
        long = self._open(2.0, LONG_SECONDS)
        after = status("VmRSS", self._server.pid)
        half.append(self._open(0.5, SECONDS))
        saturated = [*at_capacity, *(load for factor in FACTORS if factor > 1 for load in sweep[factor]), long]
        return [
            self._closed_loop(at_capacity, sweep),
            *(self._swept(factor, loads) for factor, loads in sweep.items()),
            *self._at_twice(long, sweep, half),
            self._memory(after, before),
            self._refusal(saturated),
        ]

    def _closed(self, seconds: float) -> Load:
        return self._checked(closed(self._server.port, self._requests, CONNECTIONS, seconds, self._server.cpu_seconds))

    def _open(self, factor: float, seconds: float) -> Load:
        stream = Stream(self._requests, factor * self._capacity, seed=next(self._seeds))
        return self._checked(open_loop(self._server.port, stream, seconds, self._server.cpu_seconds))

    def _checked(self, load: Load) -> Load:
        if unexpected := set(load.statuses) - {200, 429}:
            raise SystemExit(f"{self._kind}: unexpected statuses {unexpected} in {load.statuses}")
        return load

    def _closed_loop(self, loads: list[Load], sweep: dict[float, list[Load]]) -> Result:
        """Far from 1x: the factors of the sweep are not multiples of what the worker can answer."""
        best = max(_goodput(swept) for swept in sweep.values())
        claim = f"{self._kind}: capacity (closed loop, {CONNECTIONS} connections), against the best goodput of the sweep"
        shown = f"{self._capacity:,.0f}/s; {_described(loads)}", f"{best:,.0f}/s"
        return Result(claim, *shown, self._capacity / best, "", True)

    def _swept(self, factor: float, loads: list[Load]) -> Result:
        goodput, offered = _goodput(loads), factor * self._capacity
        claim = f"{self._kind}, {factor:g}x the capacity offered: answers per second, against requests per second"
        return Result(claim, f"{goodput:,.0f}/s; {_described(loads)}", f"{offered:,.0f}/s", goodput / offered, "", True)

    def _at_twice(self, long: Load, sweep: dict[float, list[Load]], half: list[Load]) -> list[Result]:
        at = f"{self._kind}, 2x the capacity offered for {LONG_SECONDS:.0f} s"
        goodputs = {factor: _goodput(loads) for factor, loads in sweep.items()}
        best_at = max(goodputs, key=lambda factor: goodputs[factor])
        best, p99 = goodputs[best_at], long.quantile(0.99)
        usual, share = _p99(half), long.refused / sum(long.statuses.values())
        shown = f"{long.rate:,.0f}/s; {_described([long])}", f"{best:,.0f}/s at {best_at:g}x"
        extremes = " to ".join(duration(load.quantile(0.99)) for load in sorted(half, key=_p99_of)[:: len(half) - 1])
        return [
            _at_least(f"{at}: answers per second, against the best of the sweep", *shown, long.rate / best, GOODPUT_BAR),
            _at_most(
                f"{at}: p99 of the answers, against p99 at half of the capacity",
                duration(p99),
                f"{duration(usual)} ({extremes})",
                p99 / usual,
                P99_BAR,
            ),
            Result(
                f"{at}: share refused, against the share above the capacity", f"{share:.1%}", "50%", share / 0.5, "", True
            ),
        ]

    def _memory(self, after: int, before: int) -> Result:
        claim = f"{self._kind}: resident memory of the worker after that, against before"
        return _at_most(claim, f"{after / 1e6:.0f} MB", f"{before / 1e6:.0f} MB", after / before, MEMORY_BAR)

    def _refusal(self, saturated: Sequence[Load]) -> Result:
        """CPU time = answers * cost of an answer + refusals * cost of a refusal, fitted over runs of a saturated worker.

        Runs below the capacity are left out: a worker with little to do merges fewer requests, and an answer costs more.
        """
        counts = np.array([[load.statuses.get(200, 0), load.refused] for load in saturated], dtype=float)
        cpu = np.array([load.cpu_seconds for load in saturated])
        answer, refusal = np.linalg.lstsq(counts, cpu, rcond=None)[0]
        residual = float(np.abs(counts @ [answer, refusal] - cpu).max() / cpu.max())
        claim = f"{self._kind}: CPU time of the worker per refusal, against per answer"
        shown = f"{refusal * 1e6:.0f} us (largest residual of the fit {residual:.0%})", f"{answer * 1e6:.0f} us"
        return Result(claim, *shown, refusal / answer, "", True)


def _goodput(loads: list[Load]) -> float:
    return float(np.median([load.rate for load in loads]))


def _p99_of(load: Load) -> float:
    return load.quantile(0.99)


def _p99(loads: list[Load]) -> float:
    return float(np.median([_p99_of(load) for load in loads]))


def _described(loads: list[Load]) -> str:
    """Medians over the runs; refusals and what waited in the generator are sums."""
    cores = float(np.median([load.cpu_seconds / load.seconds for load in loads]))
    p50, p99 = (float(np.median([load.quantile(share) for load in loads])) for share in (0.5, 0.99))
    refused, requests = sum(load.refused for load in loads), sum(sum(load.statuses.values()) for load in loads)
    text = f"p50 {duration(p50)}, p99 {duration(p99)}; {cores:.2f} cores; {refused / requests:.1%} refused"
    if refused:
        late = np.concatenate([load.refused_latencies for load in loads])
        text += f" (p50 {duration(float(np.median(late)))}, p99 {duration(float(np.quantile(late, 0.99)))})"
    waited, lag = sum(load.waited for load in loads), max(load.lag for load in loads)
    if lag > TOLERABLE_LAG or waited:
        text += f"; generator: {duration(lag)} late at p99, {waited:,} requests waited for a connection"
    return text


def _at_least(claim: str, ours: str, against: str, ratio: float, bar: float) -> Result:
    return Result(claim, ours, against, ratio, f">= {bar:g}x", ratio >= bar)


def _at_most(claim: str, ours: str, against: str, ratio: float, bar: float) -> Result:
    return Result(claim, ours, against, ratio, f"<= {bar:g}x", ratio <= bar)
