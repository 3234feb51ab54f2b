"""One line of the benchmark pages: a claim, what it was measured against, and the bar that it must clear."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.contest import Timing


@dataclass(frozen=True)
class Result:
    claim: str
    ours: str
    against: str
    ratio: float
    bar: str
    met: bool

    @property
    def verdict(self) -> str:
        return f"{self.bar} {'met' if self.met else 'MISSED'}" if self.bar else ""

    @property
    def shown_ratio(self) -> str:
        return f"{self.ratio:,.0f}x" if self.ratio >= 100 else f"{self.ratio:.2f}x"


def faster(claim: str, ours: Timing, theirs: Timing, bar: float | None) -> Result:
    ratio = theirs.median / ours.median
    return Result(claim, str(ours), str(theirs), ratio, f">= {bar:g}x" if bar else "", not bar or ratio >= bar)


def at_most(claim: str, ours: Timing, floor: Timing, bar: float | None) -> Result:
    ratio = ours.median / floor.median
    return Result(claim, str(ours), str(floor), ratio, f"<= {bar:g}x" if bar else "", not bar or ratio <= bar)


def smaller(claim: str, our_bytes: float, their_bytes: float, bar: float | None) -> Result:
    ratio = our_bytes / their_bytes
    ours, theirs = f"{our_bytes / 1e6:.0f} MB", f"{their_bytes / 1e6:.0f} MB"
    return Result(claim, ours, theirs, ratio, f"<= {bar:g}x" if bar else "", not bar or ratio <= bar)
