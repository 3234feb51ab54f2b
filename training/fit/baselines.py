"""Baselines that a model should beat: the training labels alone, and a linear model of the features without the graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, StandardScaler

from sgformer import SparseRows
from sgformer.config import FeatureTransform, Task
from training.data.facts.columns import as_matrix
from training.data.labelled import TEST, TRAIN, VALIDATION, LabelledGraph
from training.fit import tasks

MAX_WORK = 250_000_000
"""A linear model with more work is skipped. The work is the number of stored feature values of the training nodes and the
scored nodes, times the number of outputs; this much takes about ten seconds."""
MAX_ITERATIONS = 100
UNSEEN = -1e9
"""The logit of a class that no training node has."""

Baselines = dict[str, dict[str, Any]]
"""By name of the baseline, its scores by metric, or {"skipped": reason}."""


def baselines(data: LabelledGraph, transform: FeatureTransform, metrics: Iterable[str]) -> Baselines:
    """Scores the baselines on the test nodes, or on the validation nodes if there are no test nodes.

    Args:
        transform: the transform of the model; the linear model reads standardised features if the model does.
    """
    scored = data.nodes(TEST) if len(data.nodes(TEST)) else data.nodes(VALIDATION)
    names = list(metrics)

    def scores(logits: NDArray[Any]) -> dict[str, Any]:
        return {name: tasks.score(name, logits, data.labels[scored], data.task) for name in names}

    constant = np.tile(_constant_logits(data), (len(scored), 1))
    labels_only = {"regression": "mean", "multilabel": "majority labels", "multiclass": "majority class"}[data.task]
    reason = _why_infeasible(data, len(scored))
    linear = scores(_linear_logits(data, transform, scored)) if reason is None else {"skipped": reason}
    return {labels_only: scores(constant), "linear model": linear}


def _constant_logits(data: LabelledGraph) -> NDArray[np.float64]:
    """The same answer for every node: the frequencies of the training labels, or their mean."""
    labels = data.labels[data.nodes(TRAIN)]
    if data.task == "multiclass":
        return np.bincount(labels, minlength=data.num_outputs).astype(np.float64)
    columns = labels.reshape(len(labels), -1)
    labelled = ~np.isnan(columns)
    means = np.where(labelled, columns, 0).sum(axis=0) / np.maximum(labelled.sum(axis=0), 1)
    # A label is predicted if its logit is positive, which is if most of the labelled nodes have it.
    return np.asarray(means - 0.5 if data.task == "multilabel" else means)


def _why_infeasible(data: LabelledGraph, scored: int) -> str | None:
    features = data.graph.features
    per_node = len(features.values) / max(data.graph.num_nodes, 1) if isinstance(features, SparseRows) else features.shape[1]
    work = (len(data.nodes(TRAIN)) + scored) * per_node * data.num_outputs
    if work > MAX_WORK:
        return f"{work:.1e} feature values times outputs, at most {MAX_WORK:.1e} are affordable"
    if data.task == "multiclass" and len(np.unique(data.labels[data.nodes(TRAIN)])) < 2:
        return "the training nodes have a single class"
    return None


def _linear_logits(data: LabelledGraph, transform: FeatureTransform, scored: NDArray[np.int64]) -> NDArray[np.float64]:
    """Logistic regression, one per column of multi-label data; ridge regression for values."""
    rows = as_matrix(data.graph.features)
    train_rows, scored_rows, labels = rows[data.nodes(TRAIN)], rows[scored], data.labels[data.nodes(TRAIN)]

    def fit_model(features: Any, targets: NDArray[Any]) -> Any:
        scale = StandardScaler(with_mean=not issparse(rows)) if transform == "standard" else MaxAbsScaler()
        model = Ridge() if data.task == "regression" else LogisticRegression(max_iter=MAX_ITERATIONS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the bound on iterations is intended
            return make_pipeline(scale, model).fit(features, targets)

    if data.task == "multiclass":
        model = fit_model(train_rows, labels)
        logits = np.full((len(scored), data.num_outputs), UNSEEN)
        logits[:, model.classes_] = _decisions(model, scored_rows)
        return logits
    columns = labels.reshape(len(labels), -1).T
    constant = _constant_logits(data)
    answers = [_column_logits(fit_model, train_rows, column, scored_rows, data.task) for column in columns]
    return np.stack([np.full(len(scored), constant[n]) if a is None else a for n, a in enumerate(answers)], axis=1)


def _column_logits(
    fit_model: Callable[[Any, NDArray[Any]], Any], train_rows: Any, column: NDArray[Any], scored_rows: Any, task: Task
) -> NDArray[np.float64] | None:
    """The logits of a linear model of one column of labels; None if the column has fewer than two values."""
    labelled = np.flatnonzero(~np.isnan(column))
    if len(np.unique(column[labelled])) < 2:
        return None
    model = fit_model(train_rows[labelled], column[labelled])
    logits = model.predict(scored_rows) if task == "regression" else model.decision_function(scored_rows)
    return np.asarray(logits, dtype=np.float64)


def _decisions(model: Any, rows: Any) -> NDArray[np.float64]:
    """One column per class; scikit-learn gives a single column for two classes."""
    decisions = np.asarray(model.decision_function(rows), dtype=np.float64)
    return np.stack([-decisions / 2, decisions / 2], axis=1) if decisions.ndim == 1 else decisions
