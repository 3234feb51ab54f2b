"""Measurements, and the rows of docs/benchmarks.md that are made of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.load import Load


@dataclass(frozen=True)
class Result:
    """A row: a claim, two measured values, their ratio, and the bar that the ratio must clear."""

    claim: str
    ours: str
    against: str
    ratio: float
    bar: str = ""
    met: bool = True

    @property
    def verdict(self) -> str:
        return f"{self.bar} {'met' if self.met else 'MISSED'}" if self.bar else ""

    @property
    def shown_ratio(self) -> str:
        return f"{self.ratio:,.0f}x" if self.ratio >= 100 else f"{self.ratio:.2f}x"


def at_least(claim: str, ours: object, against: object, ratio: float, bar: float | None = None) -> Result:
    return Result(claim, str(ours), str(against), ratio, *((f">= {bar:g}x", ratio >= bar) if bar is not None else ()))


def at_most(claim: str, ours: object, against: object, ratio: float, bar: float | None = None, valid: bool = True) -> Result:
    """`valid` False: the bar is missed whatever the ratio is, because some requests had no answer."""
    met = (f"<= {bar:g}x", ratio <= bar and valid) if bar is not None else ()
    return Result(claim, str(ours), str(against), ratio, *met)


@dataclass(frozen=True)
class Timing:
    """The seconds of one contestant: the median and the quartiles over all rounds."""

    median: float
    quarter: float
    three_quarters: float

    @classmethod
    def of(cls, seconds: list[float]) -> Timing:
        return cls(*(float(quantile) for quantile in np.quantile(seconds, [0.5, 0.25, 0.75])))

    def __str__(self) -> str:
        return f"{format_seconds(self.median)} ({format_seconds(self.quarter)} to {format_seconds(self.three_quarters)})"


def faster(claim: str, ours: Timing, theirs: Timing, bar: float | None) -> Result:
    return at_least(claim, ours, theirs, theirs.median / ours.median, bar)


def slower(claim: str, ours: Timing, floor: Timing, bar: float | None) -> Result:
    return at_most(claim, ours, floor, ours.median / floor.median, bar)


def smaller(claim: str, our_bytes: float, their_bytes: float, bar: float | None, digits: int = 0) -> Result:
    megabytes = [f"{size / 1e6:.{digits}f} MB" for size in (our_bytes, their_bytes)]
    return at_most(claim, *megabytes, our_bytes / their_bytes, bar)


def time_in_turns(contestants: Mapping[str, Callable[[], object]], rounds: int, warmups: int = 2) -> dict[str, Timing]:
    """Times every contestant once per round, so that a slow minute of the machine affects all of them."""

    def measure(run: Callable[[], object]) -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    return collect_in_turns({name: lambda run=run: measure(run) for name, run in contestants.items()}, rounds, warmups)


def collect_in_turns(contestants: Mapping[str, Callable[[], float]], rounds: int, warmups: int = 2) -> dict[str, Timing]:
    """As `time_in_turns`, for contestants that return the seconds of a run themselves."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(warmups + rounds):
        for name, measure in contestants.items():
            seconds[name].append(measure())
    return {name: Timing.of(times[warmups:]) for name, times in seconds.items()}


class Loads(list[Load]):
    """The runs of one contestant under load. Rates and quantiles are medians over the runs."""

    @property
    def rate(self) -> float:
        return float(np.median([load.rate for load in self]))

    @property
    def statuses(self) -> Counter[int]:
        return sum((Counter(load.statuses) for load in self), Counter())

    @property
    def unanswered(self) -> int:
        """The number of requests without a response of status 200."""
        return self.statuses.total() - self.statuses[200]

    def quantile(self, share: float) -> float:
        return float(np.median([load.quantile(share) for load in self]))

    def latencies(self, *shares: float) -> str:
        """For example "p50 1 ms, p99 3 ms, max 5 ms" for 0.5, 0.99 and 1.0."""
        names = {share: "max" if share == 1 else f"p{100 * share:g}" for share in shares}
        return ", ".join(f"{name} {format_seconds(self.quantile(share))}" for share, name in names.items())

    def __str__(self) -> str:
        low, high = np.quantile([load.rate for load in self], [0.25, 0.75])
        return f"{self.rate:,.0f}/s ({low:,.0f} to {high:,.0f}); {self.latencies(0.5, 0.99, 1.0)}"


def higher_rate(claim: str, ours: Loads, theirs: Loads, bar: float | None = None) -> Result:
    return at_least(claim, ours, theirs, ours.rate / theirs.rate, bar)


def format_seconds(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"
