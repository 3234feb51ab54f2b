"""Explanations of a graph in which known edges decide the labels: the share that name these edges, and their CPU time.

Compared with PyTorch Geometric's GNNExplainer on the same weights. Times are CPU seconds of this process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch_geometric.explain import Explainer, GNNExplainer

from benchmarks.planted import DECISIVE, Planted
from benchmarks.results import Result, at_least
from sgformer.explain.explanation import explain
from sgformer.explain.subject import Budget, Subject

CASES, EPOCHS = 200, 100
MIN_RECALL, MIN_SPEED = 0.95, 20


def explanations(cases: int = CASES, epochs: int = EPOCHS) -> list[Result]:
    planted = Planted.make(cases)
    model = planted.train()
    ours, our_seconds = measure(planted, our_explainer(planted, model))
    theirs, their_seconds = measure(planted, gnn_explainer(planted, model, epochs))
    claim = f"{cases} explanations: share that name all {DECISIVE} deciding edges ({epochs} epochs of GNNExplainer)"
    bar = f">= {MIN_RECALL * 100:.0f} %"
    return [
        Result(claim, f"{ours:.1%}", f"{theirs:.1%}", ours / max(theirs, 1e-9), bar, bool(ours >= MIN_RECALL)),
        at_least(
            "CPU time of an explanation",
            f"{our_seconds / cases * 1000:.2f} ms",
            f"{their_seconds / cases * 1000:.0f} ms",
            their_seconds / our_seconds,
            MIN_SPEED,
        ),
    ]


def measure(planted: Planted, strongest: Callable[[int], Sequence[int]]) -> tuple[float, float]:
    """The share of cases whose deciding edges are the strongest, and the CPU seconds of all cases."""
    hits, start = 0, time.process_time()
    for case, decisive in zip(planted.cases, planted.decisive, strict=True):
        hits += set(strongest(int(case))) == set(decisive.tolist())
    return hits / len(planted.cases), time.process_time() - start


def our_explainer(planted: Planted, model: torch.nn.Module) -> Callable[[int], Sequence[int]]:
    live = planted.served(model)
    return lambda case: explain(Subject.known(live, case, Budget()), "multiclass", DECISIVE).neighbors.items.tolist()


def gnn_explainer(planted: Planted, model: torch.nn.Module, epochs: int) -> Callable[[int], Sequence[int]]:
    """The neighbours whose edges, in both directions together, have the largest masks."""
    features, edges, batch = planted.tensors()
    task = {"mode": "multiclass_classification", "task_level": "node", "return_type": "log_probs"}
    algorithm = GNNExplainer(epochs=epochs)
    explainer = Explainer(model, algorithm, explanation_type="model", edge_mask_type="object", model_config=task)

    def strongest(case: int) -> Sequence[int]:
        torch.manual_seed(case)
        mask = explainer(features, edges, batch=batch, index=case).edge_mask.numpy()
        sources, targets = edges.numpy()
        weights = np.zeros(planted.graph.num_nodes)
        np.add.at(weights, targets[sources == case], mask[sources == case])
        np.add.at(weights, sources[targets == case], mask[targets == case])
        return np.argsort(-weights)[:DECISIVE].tolist()

    return strongest


if __name__ == "__main__":
    for result in explanations():
        print(f"{result.claim}: {result.ours}, GNNExplainer {result.against}, {result.shown_ratio} {result.verdict}")
