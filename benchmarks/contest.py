"""Fair timing on a shared, noisy machine: contestants take turns, and medians are compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Timing:
    """Seconds of one contestant over all rounds."""

    median: float
    quarter: float
    three_quarters: float

    def __str__(self) -> str:
        return f"{duration(self.median)} ({duration(self.quarter)} to {duration(self.three_quarters)})"


def contest(contestants: Mapping[str, Callable[[], object]], rounds: int, warmups: int = 2) -> dict[str, Timing]:
    """Every round runs every contestant once, in turn, so that a slow minute of the machine is everybody's."""
    for _ in range(warmups):
        for run in contestants.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: summarised(times) for name, times in seconds.items()}


def summarised(seconds: list[float]) -> Timing:
    return Timing(*(float(quantile) for quantile in np.quantile(seconds, [0.5, 0.25, 0.75])))


def duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"
