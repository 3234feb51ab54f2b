"""Losses and scores of the three tasks. Scores are those of scikit-learn; a larger score is better, except for `mae`."""

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


def loss(logits: torch.Tensor, labels: torch.Tensor, task: Task, label_smoothing: float = 0.0) -> torch.Tensor:
    """The mean loss over labelled entries. `label_smoothing` is for the multiclass task only."""
    if task == "multiclass":
        return F.cross_entropy(logits, labels, label_smoothing=label_smoothing)
    targets = labels.reshape(logits.shape)
    labelled = ~targets.isnan()
    function = F.binary_cross_entropy_with_logits if task == "multilabel" else F.mse_loss
    return function(logits[labelled], targets[labelled])


def accuracy(logits: NDArray[Any], labels: NDArray[Any], task: Task) -> float:
    return float(metrics.accuracy_score(*_predictions(logits, labels, task)))


def macro_f1(logits: NDArray[Any], labels: NDArray[Any], task: Task) -> float:
    if task == "multilabel":
        columns = _columns_with_both_labels(labels)
        scores = [metrics.f1_score(*_predictions(logits[:, [c]], labels[:, [c]], task), zero_division=0.0) for c in columns]
        return float(np.mean(scores)) if scores else 0.0
    return float(metrics.f1_score(*_predictions(logits, labels, task), average="macro", zero_division=0.0))


def roc_auc(logits: NDArray[Any], labels: NDArray[Any], task: Task) -> float:
    """The score of the second class if there are two; the mean over classes, each against the others, if there are more.
    Multi-label: the mean over columns.
    """
    if task == "multiclass":
        likely = probabilities(logits, task)
        classes = [1] if likely.shape[1] == 2 else range(likely.shape[1])
        pairs = [(labels == number, likely[:, number]) for number in classes if 0 < (labels == number).sum() < len(labels)]
    else:
        pairs = [_labelled(labels[:, column], logits[:, column]) for column in _columns_with_both_labels(labels)]
    scores = [metrics.roc_auc_score(truth, predicted) for truth, predicted in pairs]
    return float(np.mean(scores)) if scores else 0.5


def mae(values: NDArray[Any], labels: NDArray[Any], _task: Task) -> float:
    return float(metrics.mean_absolute_error(*_labelled(labels.reshape(values.shape), values)))


def r2(values: NDArray[Any], labels: NDArray[Any], _task: Task) -> float:
    return float(metrics.r2_score(*_labelled(labels.reshape(values.shape), values)))


METRICS: dict[str, Score] = {"accuracy": accuracy, "macro_f1": macro_f1, "roc_auc": roc_auc, "mae": mae, "r2": r2}
TASK_METRICS: dict[Task, tuple[str, ...]] = {
    "multiclass": ("accuracy", "macro_f1"),
    "multilabel": ("roc_auc", "macro_f1", "accuracy"),
    "regression": ("r2", "mae"),
}
"""The reported scores. The first chooses the best epoch, unless the data set names another."""


def score(name: str, logits: NDArray[Any], labels: NDArray[Any], task: Task) -> float:
    return METRICS[name](logits, labels, task)


def better(name: str, score: float, best: float) -> bool:
    return score < best if name == "mae" else score > best


def worst(name: str) -> float:
    return float("inf") if name == "mae" else float("-inf")


def _predictions(logits: NDArray[Any], labels: NDArray[Any], task: Task) -> tuple[NDArray[Any], NDArray[Any]]:
    """True and predicted classes."""
    return (labels, logits.argmax(axis=1)) if task == "multiclass" else _labelled(labels, logits > 0)


def _labelled(truth: NDArray[Any], predicted: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    labelled = ~np.isnan(truth)
    return truth[labelled], predicted[labelled]


def _columns_with_both_labels(labels: NDArray[Any]) -> list[int]:
    return np.flatnonzero((labels == 0).any(axis=0) & (labels == 1).any(axis=0)).tolist()
