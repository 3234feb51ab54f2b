"""One process of several that share a training and a summary: torchrun starts it, and rank 0 prints the seconds as JSON.

torchrun --standalone --nproc-per-node N -m benchmarks.ranks NODES EDGES BATCH_NODES

For every measurement, it prints the seconds and the CPU seconds of the process that used most.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import torch

from sgformer import summarize
from sgformer.full_graph.collectives import broadcast, gather_rows
from sgformer.full_graph.shard import Shard
from training.data.datasets.synthetic import generate
from training.fit.loop import TrainingConfig, train
from training.fit.processes import process_group, rank
from training.fit.settings import configurations

EPOCHS, SUMMARIES = 3, 3


def main(nodes: int, edges: int, batch_nodes: int) -> None:
    torch.set_num_threads(1)
    with process_group():
        data = generate(nodes, edges)
        config, _ = configurations(data, {})
        ends: list[tuple[float, float]] = []
        training = TrainingConfig(epochs=EPOCHS, batch_nodes=batch_nodes)
        weights = train(config, data, training, lambda _: ends.append(_clocks())).model.weights()
        summaries = []
        for _ in range(SUMMARIES):
            broadcast(None)  # all processes begin together
            start = _clocks()
            summarize(config, weights, data.graph, shard=Shard.of(data.graph))
            broadcast(None)
            summaries.append(np.subtract(_clocks(), start))
        measured = {"epoch": np.diff(ends, axis=0), "summary": np.array(summaries)}
        largest = {name: gather_rows(seconds[None]).max(axis=0).tolist() for name, seconds in measured.items()}
        if rank() == 0:
            print(json.dumps(largest))


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
