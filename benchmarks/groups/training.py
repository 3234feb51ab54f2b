"""An epoch of training against PyTorch Geometric's SGFormer of the same sizes, a million nodes in mini-batches and by two
processes, and a training on a busy machine.

python -m benchmarks.groups.training STORE      trains one epoch, evaluates and publishes; prints its peak memory and times
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict

from benchmarks.memory import PeakAnonymous
from benchmarks.model_processes import take_turns
from benchmarks.results import Result, Timing, at_most, faster, format_seconds, smaller

NODES, EDGES, BATCH = 1_000_000, 10_000_000, 100_000
ALLOWED_BYTES = 12e9
ROUNDS, BUSY = 2, 8


def against_pyg() -> list[Result]:
    results = []
    for name, bar in (("cora", 2), ("debian_trixie", 5)):
        times, peaks = take_turns(name, "their_epoch", "our_epoch")
        claim = f"epoch of training (step and validation), {name}, PyG's weights and sizes"
        results.append(faster(claim, times["our_epoch"], times["their_epoch"], bar))
        results.append(smaller(f"peak memory of that epoch, {name}", peaks["our_epoch"], peaks["their_epoch"], 0.5))
    return results


def a_million_nodes() -> list[Result]:
    with tempfile.TemporaryDirectory() as root:
        command = [sys.executable, "-m", "benchmarks.groups.training", root]
        report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    claim = (
        f"one epoch in batches of {BATCH:,}, evaluation and publishing of {NODES:,} nodes and {EDGES:,} edges "
        f"({report['train']:.0f} s and {report['publish']:.0f} s): peak private memory, against 12 GB"
    )
    return [smaller(claim, report["peak"], ALLOWED_BYTES, 1)]


def two_processes() -> list[Result]:
    """Each on one core: a process also cuts its next batch in a thread, for which a single one would use the second core."""
    seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
    for _ in range(ROUNDS):
        for count in (1, 2):
            launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
            command = ["taskset", "--cpu-list", f"0-{count - 1}", *launcher, "-m", "benchmarks.ranks"]
            environ = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
            sizes = [str(NODES), str(EDGES), str(BATCH)]
            run = subprocess.run([*command, *sizes], env=environ, check=True, stdout=subprocess.PIPE, text=True)
            for name, times in json.loads(run.stdout).items():
                seconds[name, count] += times
    claims = {"epoch": f"epoch in batches of {BATCH:,}, with its evaluation", "summary": "full forward of a snapshot"}
    return [
        faster(
            f"{claim}, {NODES:,} nodes: two processes of one thread against one",
            *(Timing.of(seconds[name, count]) for count in (2, 1)),
            1.7,
        )
        for name, claim in claims.items()
    ]


def on_a_busy_machine() -> list[Result]:
    """Beside BUSY processes, T threads on C cores can at best run (T + BUSY) / C times as long."""
    cores = len(os.sched_getaffinity(0))
    fair = (cores + BUSY) / cores
    results = []
    for policy, bar in (("passive", 1.5), ("active", None)):
        alone = [_train_digits(policy) for _ in range(ROUNDS)]
        loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
        try:
            beside = [_train_digits(policy) for _ in range(ROUNDS)]
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


def _large(root: str) -> None:
    from model_store import Store
    from training import publish
    from training.data.datasets.synthetic import generate
    from training.fit.loop import TrainingConfig, train
    from training.fit.settings import configurations

    with PeakAnonymous() as peak:
        data = generate(NODES, EDGES)
        config, _ = configurations(data, {})
        start = time.perf_counter()
        trained = train(config, data, TrainingConfig(epochs=1, batch_nodes=BATCH))
        trained_at = time.perf_counter()
        publish(trained.model, data.graph, store=Store(root), name="large", activate=True)
        end = time.perf_counter()
    scores = trained.scores["test"]
    print(json.dumps({"peak": peak.bytes, "train": trained_at - start, "publish": end - trained_at, "scores": scores}))


if __name__ == "__main__":
    _large(sys.argv[1])
