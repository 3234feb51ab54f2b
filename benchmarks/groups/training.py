"""An epoch of training against PyTorch Geometric's SGFormer of the same sizes, and a million nodes in mini-batches.

python -m benchmarks.groups.training STORE      trains one epoch, evaluates and publishes; prints its peak memory and times
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time

from benchmarks.memory import PeakAnonymous
from benchmarks.model_processes import take_turns
from benchmarks.results import Result, faster, smaller

NODES, EDGES, BATCH = 1_000_000, 10_000_000, 100_000
ALLOWED_BYTES = 12e9


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
