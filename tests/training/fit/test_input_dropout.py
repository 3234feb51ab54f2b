"""Dropout of inputs and the schedule of the learning rate: what a training step reads, and that answers do not change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sgformer import ConfigError, SGFormer
from sgformer.torch_model.model import GraphTensors
from sgformer.torch_model.propagation import SparseFeatures
from tests.sgformer.cases import sparsified
from tests.training.samples import config, labelled
from training.fit.input_dropout import drop_inputs
from training.fit.loop import Epoch, Stopped, TrainingConfig, train

SHARE = 0.25


def prepared() -> GraphTensors:
    data = labelled()
    return SGFormer(config(data)).prepare(data.graph)


def test_without_shares_the_graph_is_as_it_was() -> None:
    graph = prepared()
    assert drop_inputs(graph, 0, 0) == graph


def test_edges_are_dropped_in_both_directions_and_the_mean_stays() -> None:
    graph = prepared()
    torch.manual_seed(0)
    whole = graph.propagate.matrix.to_dense()
    parts = [drop_inputs(graph, 0, SHARE).propagate for _ in range(200)]
    for part in parts[:3]:
        dropped = part.matrix.to_dense()
        assert torch.equal(dropped, dropped.T)
        kept = dropped != 0
        torch.testing.assert_close(dropped[kept], whole[kept] / (1 - SHARE))
        assert abs(kept.sum() / (whole != 0).sum() - (1 - SHARE)) < 0.05
        assert part.own is graph.propagate.own
    mean = torch.stack([part.matrix.values() for part in parts]).mean(dim=0)
    assert (mean / graph.propagate.matrix.values() - 1).abs().max() < 0.25, "no edge is always kept or always dropped"


def test_a_dropped_value_of_sparse_features_has_no_gradient() -> None:
    rows = sparsified(np.random.default_rng(0).normal(size=(30, 8)), np.random.default_rng(1))
    graph = GraphTensors(SparseFeatures(rows, torch.float64), prepared().propagate)
    torch.manual_seed(0)
    dropped = drop_inputs(graph, 0.5, 0).features
    assert isinstance(dropped, SparseFeatures)
    dense = dropped.matrix.to_dense()
    assert torch.equal(dropped.transposed.to_dense(), dense.T)
    assert 0.3 < float((dense != 0).sum()) / len(rows.values) < 0.7
    torch.testing.assert_close(dense[dense != 0], 2 * torch.from_numpy(rows.toarray())[dense != 0])


@pytest.mark.parametrize("settings", [{"feature_dropout": 0.5}, {"edge_dropout": 0.5}, {"schedule": "cosine"}])
def test_a_setting_changes_the_training_and_not_the_answers(settings: dict[str, Any]) -> None:
    data = labelled()
    model = config(data, attention_dropout=0.0, gnn_dropout=0.0)
    plain, other = (train(model, data, TrainingConfig(epochs=3, **kind)) for kind in ({}, settings))
    assert plain.history != other.history
    prepared = other.model.prepare(data.graph)
    with torch.inference_mode():
        answers = [other.model(prepared) for _ in range(2)]
    assert torch.equal(*answers)
    np.testing.assert_array_equal(answers[0].numpy(), other.logits)


def test_the_cosine_falls_from_the_learning_rate_to_zero() -> None:
    training = TrainingConfig(epochs=10, learning_rate=0.2, schedule="cosine")
    assert [round(training.learning_rate_at(epoch), 12) for epoch in (0, 5, 10)] == [0.2, 0.1, 0]
    assert TrainingConfig(epochs=10, learning_rate=0.2).learning_rate_at(9) == 0.2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"edge_dropout": 1.0}, r"edge_dropout must lie in \[0, 1\), got 1.0"),
        ({"feature_dropout": -0.1}, r"feature_dropout must lie in \[0, 1\), got -0.1"),
        ({"schedule": "steep"}, "schedule must be one of constant, cosine, got 'steep'"),
    ],
)
def test_a_wrong_value_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainingConfig(**settings)


def test_a_resumed_run_continues_the_schedule_and_the_dropout(tmp_path: Path) -> None:
    data, checkpoint = labelled(), tmp_path / "run.safetensors"
    settings = TrainingConfig(epochs=8, schedule="cosine", edge_dropout=0.3, feature_dropout=0.2)
    whole = train(config(data), data, settings)
    epochs: list[Epoch] = []
    with pytest.raises(Stopped):
        train(config(data), data, settings, epochs.append, checkpoint=checkpoint, stop=lambda: len(epochs) == 3)
    assert train(config(data), data, settings, checkpoint=checkpoint, resume=True).history == whole.history
