"""Times functions of `pyg_peer.Pair` in turns. Each function has a process, and so a memory allocator, of its own.

python -m benchmarks.model_processes GRAPH RUN      runs once per line of standard input, and prints the peak memory of the
                                                    first run in bytes, and the seconds of every later run
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.graphs import GRAPHS
from benchmarks.memory import status_bytes
from benchmarks.results import Timing, collect_in_turns

ROUNDS = 15


def take_turns(graph: str, *runs: str) -> tuple[dict[str, Timing], dict[str, int]]:
    """Returns the timing and the peak memory in bytes of every run, by its name in `Pair`."""
    command = [sys.executable, "-m", "benchmarks.model_processes", graph]
    pipe = subprocess.PIPE
    processes = {run: subprocess.Popen([*command, run], stdin=pipe, stdout=pipe, text=True, bufsize=1) for run in runs}
    try:
        peaks = {run: int(exchange_line(process)) for run, process in processes.items()}
        measures = {run: lambda process=process: float(exchange_line(process)) for run, process in processes.items()}
        return collect_in_turns(measures, ROUNDS), peaks
    finally:
        for process in processes.values():
            process.communicate()


def exchange_line(process: subprocess.Popen[str], order: str | None = "run") -> str:
    """Sends a line to a process, unless `order` is None, and returns the next line of its output."""
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the process has no pipes")
    if order is not None:
        print(order, file=process.stdin, flush=True)
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"the process ended without an answer: {process.args!r}")
    return line


def _run_per_line(graph_name: str, run_name: str) -> None:
    from benchmarks.pyg_peer import Pair

    run = getattr(Pair(GRAPHS[graph_name]()), run_name)()
    for number, _ in enumerate(sys.stdin):
        if number == 0:
            before = status_bytes("VmRSS")
            Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
            run()
            print(status_bytes("VmHWM") - before, flush=True)
        else:
            start = time.perf_counter()
            run()
            print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    _run_per_line(*sys.argv[1:])
