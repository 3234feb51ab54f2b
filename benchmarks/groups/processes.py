"""A training and a full forward by two processes against one, and a training beside other busy processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from benchmarks.groups.training import BATCH, EDGES, NODES
from benchmarks.results import Result, Timing, at_most, faster, format_seconds

ROUNDS, BUSY = 2, 8
CONTESTANTS = ("one", "two", "halves")


def two_processes() -> list[Result]:
    """Each on one core: a process also cuts its next batch in a thread, for which a single one would use the second core.

    The halves are two processes that know nothing of each other, with half of the nodes and edges each: nothing is exchanged
    and no process waits, so their ratio is what the machine had for two processes during this run.
    """
    seconds: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    for _ in range(ROUNDS):
        for contestant in CONTESTANTS:
            for name, measured in _run_ranks(contestant):
                seconds[name, contestant] += measured
    results = []
    for name, work in (("epoch", f"epoch in batches of {BATCH:,}, with its evaluation"), ("summary", "full forward")):
        both = {who: np.transpose(seconds[name, who]).tolist() for who in CONTESTANTS}
        wall, cpu = ({who: Timing.of(clocks[place]) for who, clocks in both.items()} for place in (0, 1))
        claim = f"{work}, {NODES:,} nodes, against one process of one thread"
        results.append(faster(f"{claim}: two processes of one thread", wall["two"], wall["one"], 1.7))
        results.append(faster(f"{claim}: CPU time of the busier of the two", cpu["two"], cpu["one"], None))
        results.append(faster(f"{claim}: two processes with half of the graph each", wall["halves"], wall["one"], None))
    return results


def _run_ranks(contestant: str) -> Iterator[tuple[str, list[list[float]]]]:
    """The seconds and CPU seconds of every measurement, by its name."""
    environ = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    module, share = ["-m", "benchmarks.ranks"], 2 if contestant == "halves" else 1
    sizes = [str(NODES // share), str(EDGES // share), str(BATCH)]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={1 if contestant == 'one' else 2}"]
    if contestant == "halves":
        commands = [["taskset", "--cpu-list", str(core), sys.executable, *module, *sizes] for core in range(2)]
    else:
        cores = "0" if contestant == "one" else "0-1"
        commands = [["taskset", "--cpu-list", cores, sys.executable, *launcher, *module, *sizes]]
    runs = [subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) for command in commands]
    for run in runs:
        output, _ = run.communicate()
        if run.returncode:
            raise SystemExit(f"{' '.join(commands[0])} failed with {run.returncode}")
        yield from json.loads(output).items()


def on_a_busy_machine() -> list[Result]:
    """Beside BUSY processes, T threads on C cores can at best run (T + BUSY) / C times as long."""
    cores = len(os.sched_getaffinity(0))
    fair = (cores + BUSY) / cores
    results = []
    for policy, bar, rounds in (("passive", 1.5, ROUNDS), ("active", None, 1)):  # a round of active threads takes minutes
        alone = [_train_digits(policy) for _ in range(rounds)]
        loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
        try:
            beside = [_train_digits(policy) for _ in range(rounds)]
        finally:
            for loop in loops:
                loop.kill()
                loop.wait()
        slowdown = min(beside) / min(alone)
        claim = f"a training beside {BUSY} busy processes, {cores} threads, OMP_WAIT_POLICY={policy}: times as long as alone"
        ours = f"{slowdown:.1f} ({format_seconds(min(beside))} against {format_seconds(min(alone))})"
        results.append(at_most(claim, ours, f"{fair:g}, its share of the machine", slowdown / fair, bar))
    return results


def _train_digits(policy: str) -> float:
    settings = ["--dataset", "digits", "--epochs", "300", "--patience", "300", "--no-publish", "--no-checkpoint", "--quiet"]
    start = time.perf_counter()
    environ = os.environ | {"OMP_WAIT_POLICY": policy}
    subprocess.run([sys.executable, "-m", "training", *settings], env=environ, check=True, capture_output=True)
    return time.perf_counter() - start
