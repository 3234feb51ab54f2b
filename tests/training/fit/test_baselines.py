"""The baselines: right on data whose best answer is known, for every task, and skipped with a reason if too large."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from numpy.typing import NDArray

from sgformer import Graph, SparseRows
from training.data.labelled import TEST, TRAIN, VALIDATION, LabelledGraph
from training.fit import baselines as module
from training.fit.baselines import baselines

RNG = np.random.default_rng(0)
COUNT = 400


def crafted(features: Any, labels: NDArray[Any], **details: Any) -> LabelledGraph:
    split = np.tile(np.array([TRAIN, TRAIN, VALIDATION, TEST], dtype=np.int8), COUNT // 4)
    graph = Graph.build(features, RNG.integers(0, COUNT, (2, COUNT)))
    return LabelledGraph("crafted", graph, labels, split, **details)


def three_classes() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Every feature tells one class; half of the nodes are of class 2."""
    labels = np.array([0, 1, 2, 2])[RNG.permutation(np.arange(COUNT) % 4)]
    return np.eye(3)[labels], labels


def test_a_class_that_the_features_tell_is_found_by_the_linear_model_and_not_by_the_majority() -> None:
    features, labels = three_classes()
    data = crafted(features, labels)
    rows = baselines(data, "none", ["accuracy", "macro_f1"])
    share = float((labels[data.nodes(TEST)] == 2).mean())
    assert rows["linear model"] == {"accuracy": 1.0, "macro_f1": 1.0}
    assert rows["majority class"]["accuracy"] == pytest.approx(share)


@pytest.mark.parametrize("transform", ["none", "standard"])
def test_sparse_features_have_the_scores_of_dense_ones(transform: Any) -> None:
    features, labels = three_classes()
    matrix = scipy.sparse.csr_array(features)
    sparse = SparseRows(matrix.indptr, matrix.indices, matrix.data, 3)
    dense_rows, sparse_rows = (baselines(crafted(x, labels), transform, ["accuracy"]) for x in (features, sparse))
    assert dense_rows == sparse_rows


def test_features_without_information_give_the_majority() -> None:
    _, labels = three_classes()
    data = crafted(np.ones((COUNT, 2)), labels)
    rows = baselines(data, "standard", ["accuracy"])
    assert rows["linear model"] == rows["majority class"]


def test_two_classes_and_a_class_that_only_test_nodes_have() -> None:
    labels = (RNG.random(COUNT) < 0.3).astype(np.int64)
    data = crafted(np.eye(2)[labels], labels)
    assert baselines(data, "none", ["accuracy", "roc_auc"])["linear model"] == {"accuracy": 1.0, "roc_auc": 1.0}
    labels[data.nodes(TEST)[0]] = 2
    accuracy = baselines(replace(data, labels=labels), "none", ["accuracy"])["linear model"]["accuracy"]
    assert accuracy == pytest.approx(1 - 1 / len(data.nodes(TEST)))


def test_multilabel_columns_are_fitted_on_their_own_labels() -> None:
    features = RNG.normal(size=(COUNT, 3))
    labels = (features[:, :2] > 0).astype(np.float32)
    labels[::5, 0] = np.nan
    labels = np.concatenate([labels, np.zeros((COUNT, 1), dtype=np.float32)], axis=1)  # never 1: there is nothing to fit
    rows = baselines(crafted(features, labels, task="multilabel", metric="roc_auc"), "standard", ["roc_auc", "accuracy"])
    assert rows["linear model"]["roc_auc"] > 0.99
    assert rows["linear model"]["accuracy"] > 0.95
    assert rows["majority labels"]["roc_auc"] == 0.5


@pytest.mark.parametrize("columns", [None, 2])
def test_values_that_are_linear_in_the_features_are_found_by_ridge_regression(columns: int | None) -> None:
    features = RNG.normal(size=(COUNT, 3)) * [1, 100, 10_000]
    values = (features @ RNG.normal(size=(3, columns or 1))).astype(np.float32)
    values[::7] = np.nan
    labels = values if columns else values[:, 0]
    rows = baselines(crafted(features, labels, task="regression", metric="r2"), "standard", ["r2"])
    assert rows["linear model"]["r2"] > 0.99
    assert rows["mean"]["r2"] == pytest.approx(0, abs=0.1)


def test_without_test_nodes_the_validation_nodes_are_scored() -> None:
    features, labels = three_classes()
    data = crafted(features, labels)
    data = replace(data, split=np.where(data.split == TEST, TRAIN, data.split).astype(np.int8))
    assert baselines(data, "none", ["accuracy"])["linear model"] == {"accuracy": 1.0}


def test_a_linear_model_that_would_take_too_long_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WORK", 100)
    features, labels = three_classes()
    rows = baselines(crafted(features, labels), "none", ["accuracy"])
    assert rows["linear model"] == {"skipped": "2.7e+03 feature values times outputs, at most 1.0e+02 are affordable"}
    assert "accuracy" in rows["majority class"]


def test_training_nodes_of_a_single_class_have_no_linear_model() -> None:
    features, labels = three_classes()
    data = crafted(features, labels)
    labels[data.nodes(TRAIN)] = 1
    rows = baselines(replace(data, labels=labels), "none", ["accuracy"])
    assert rows["linear model"] == {"skipped": "the training nodes have a single class"}
