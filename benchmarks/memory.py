"""Peak memory of one run, beyond what the graph and the model take: each in a process of its own.

python -m benchmarks.memory GRAPH RUN      prints bytes
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

GRAPHS = ("debian_trixie", "skewed")
RUNS = ("their_forward", "our_forward", "their_step", "our_step")


def peak_bytes(graph: str, run: str) -> int:
    command = [sys.executable, "-m", "benchmarks.memory", graph, run]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _measure(graph_name: str, run_name: str) -> int:
    from benchmarks import graphs
    from benchmarks.peer import Pair

    graph = graphs.debian_trixie() if graph_name == "debian_trixie" else graphs.skewed(100_000, 1_000_000, 128)
    run = getattr(Pair(graph), run_name)()
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    run()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    print(_measure(*sys.argv[1:]))
