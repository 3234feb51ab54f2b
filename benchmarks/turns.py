"""Contestants in processes of their own, taking turns: neither lives with what the other did to the allocator.

python -m benchmarks.turns GRAPH RUN       reads lines; answers each with the seconds of one run, the first with its
                                           peak memory in bytes before them
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import graphs
from benchmarks.contest import Timing, summarised
from benchmarks.memory import status
from sgformer import Graph

GRAPHS: dict[str, Callable[[], Graph]] = {
    "debian_trixie": graphs.debian_trixie,
    "cora": graphs.cora,
    "skewed": lambda: graphs.skewed(100_000, 1_000_000, 128),
}


class Contestant:
    """One run of `benchmarks.peer.Pair` on one graph, in its own process."""

    def __init__(self, graph: str, run: str) -> None:
        command = [sys.executable, "-m", "benchmarks.turns", graph, run]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.peak_bytes = int(self._turn())

    def seconds(self) -> float:
        return float(self._turn())

    def close(self) -> None:
        self._process.communicate()

    def _turn(self) -> str:
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the contestant has no pipes")
        print("run", file=self._process.stdin, flush=True)
        return self._process.stdout.readline()


@contextmanager
def contestants(graph: str, *runs: str) -> Iterator[list[Contestant]]:
    started = [Contestant(graph, run) for run in runs]
    try:
        yield started
    finally:
        for contestant in started:
            contestant.close()


def take_turns(those: dict[str, Contestant], rounds: int, warmups: int = 2) -> dict[str, Timing]:
    seconds: dict[str, list[float]] = {name: [] for name in those}
    for number in range(warmups + rounds):
        for name, contestant in those.items():
            took = contestant.seconds()
            if number >= warmups:
                seconds[name].append(took)
    return {name: summarised(times) for name, times in seconds.items()}


def _serve(graph_name: str, run_name: str) -> None:
    from benchmarks.peer import Pair

    run = getattr(Pair(GRAPHS[graph_name]()), run_name)()
    for number, _ in enumerate(sys.stdin):
        if number == 0:
            before = status("VmRSS")
            Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
            run()
            print(status("VmHWM") - before, flush=True)
        else:
            start = time.perf_counter()
            run()
            print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
