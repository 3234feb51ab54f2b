"""A full-graph training loop for models of the tables that are not served: other attention functions, PyG's model.

It trains by the settings of a recipe, as `fit.loop` does for the model that is served: Adam with a weight decay per branch,
the learning rate of the schedule, the best epoch by validation, early stopping.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray

from training.data.labelled import TEST, TRAIN, VALIDATION, LabelledGraph
from training.fit import tasks
from training.fit.settings import TrainingConfig
from training.paper.contenders import Run

Forward = Callable[[], torch.Tensor]
"""The logits of all nodes, in the mode of the module (training or evaluation)."""
Branches = tuple[list[torch.nn.Parameter], list[torch.nn.Parameter]]
"""The parameters of the attention branch, and those of the graph branch with the output layer."""


def train_module(
    module: torch.nn.Module, forward: Forward, branches: Branches, data: LabelledGraph, training: TrainingConfig
) -> Run:
    """Returns the scores of the best epoch by validation."""
    decays = (training.weight_decay, training.gnn_weight_decay)
    groups: list[dict[str, Any]] = [
        {"params": parameters, "weight_decay": decay} for parameters, decay in zip(branches, decays, strict=True)
    ]
    optimizer = torch.optim.Adam(groups, lr=training.learning_rate)
    nodes, labels = torch.from_numpy(data.nodes(TRAIN)), torch.from_numpy(data.labels)
    best, since_best, epochs, start = (0.0, 0.0), 0, 0, time.perf_counter()
    while epochs < training.epochs and (training.patience is None or since_best < training.patience):
        for group in optimizer.param_groups:
            group["lr"] = training.learning_rate_at(epochs)
        module.train()
        optimizer.zero_grad()
        loss = tasks.loss(forward()[nodes], labels[nodes], data.task, training.label_smoothing)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's stub
        optimizer.step()
        module.eval()
        with torch.inference_mode():
            logits = forward().numpy()
        scores = _score(data, logits, VALIDATION), _score(data, logits, TEST)
        best, since_best = (scores, 0) if scores[0] > best[0] else (best, since_best + 1)
        epochs += 1
    return Run(best[1], best[0], (time.perf_counter() - start) / max(epochs, 1))


def _score(data: LabelledGraph, logits: NDArray[Any], part: int) -> float:
    nodes = data.nodes(part)
    return 100 * tasks.score(data.metric, logits[nodes], data.labels[nodes], data.task)
