"""Losses and scores of the three tasks. Scores are scikit-learn's; every one is better when it is larger, except `mae`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn import metrics

from sgformer import probabilities
from sgformer.config import Task

Score = Callable[[NDArray[Any], NDArray[Any], Task], float]


def loss(logits: torch.Tensor, labels: torch.Tensor, task: Task) -> torch.Tensor:
    """Over labelled entries only."""
    if task == "multiclass":
        return F.cross_entropy(logits, labels)
    wanted = labels.reshape(logits.shape)
    known = ~wanted.isnan()
    if task == "multilabel":
        return F.binary_cross_entropy_with_logits(logits[known], wanted[known])
    return F.mse_loss(logits[known], wanted[known])


def accuracy(logits: NDArray[Any], labels: NDArray[Any], task: Task) -> float:
    return float(metrics.accuracy_score(*_decided(logits, labels, task)))


def macro_f1(logits: NDArray[Any], labels: NDArray[Any], task: Task) -> float:
    if task == "multilabel":
        columns = _tasks_with_both(labels)
        scores = [metrics.f1_score(*_decided(logits[:, [c]], labels[:, [c]], task), zero_division=0.0) for c in columns]
        return float(np.mean(scores)) if scores else 0.0
    return float(metrics.f1_score(*_decided(logits, labels, task), average="macro", zero_division=0.0))


def roc_auc(logits: NDArray[Any], labels: NDArray[Any], task: Task) -> float:
    """Of the second class where there are two; the mean over tasks that have both labels where there are several tasks."""
    if task == "multiclass":
        chance = probabilities(logits, task)
        if chance.shape[1] == 2:
            return float(metrics.roc_auc_score(labels, chance[:, 1])) if len(np.unique(labels)) == 2 else 0.5
        present = [one for one in np.unique(labels).tolist() if (labels != one).any()]
        return float(np.mean([metrics.roc_auc_score(labels == one, chance[:, one]) for one in present])) if present else 0.5
    columns = [(labels[:, c], logits[:, c]) for c in _tasks_with_both(labels)]
    scores = [metrics.roc_auc_score(truth[~np.isnan(truth)], chance[~np.isnan(truth)]) for truth, chance in columns]
    return float(np.mean(scores)) if scores else 0.5


def mae(values: NDArray[Any], labels: NDArray[Any], _task: Task) -> float:
    return float(metrics.mean_absolute_error(*_known(labels.reshape(values.shape), values)))


def r2(values: NDArray[Any], labels: NDArray[Any], _task: Task) -> float:
    return float(metrics.r2_score(*_known(labels.reshape(values.shape), values)))


METRICS: dict[str, Score] = {"accuracy": accuracy, "macro_f1": macro_f1, "roc_auc": roc_auc, "mae": mae, "r2": r2}
OF_TASK: dict[Task, tuple[str, ...]] = {
    "multiclass": ("accuracy", "macro_f1"),
    "multilabel": ("roc_auc", "macro_f1", "accuracy"),
    "regression": ("r2", "mae"),
}
"""What is reported; the first is what the best epoch is chosen by, unless the data set says otherwise."""


def score(name: str, logits: NDArray[Any], labels: NDArray[Any], task: Task) -> float:
    return METRICS[name](logits, labels, task)


def better(name: str, score: float, best: float) -> bool:
    return score < best if name == "mae" else score > best


def worst(name: str) -> float:
    return float("inf") if name == "mae" else float("-inf")


def _decided(logits: NDArray[Any], labels: NDArray[Any], task: Task) -> tuple[NDArray[Any], NDArray[Any]]:
    if task == "multiclass":
        return labels, logits.argmax(axis=1)
    return _known(labels, logits > 0)


def _known(truth: NDArray[Any], answers: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    known = ~np.isnan(truth)
    return truth[known], answers[known]


def _tasks_with_both(labels: NDArray[Any]) -> list[int]:
    return [
        column for column in range(labels.shape[1]) if {0.0, 1.0} <= set(labels[:, column][~np.isnan(labels[:, column])])
    ]
