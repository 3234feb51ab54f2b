"""The research models: the linear one is the model that is served, and the others are what their names say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from sgformer import SGFormer
from tests.training.samples import config, labelled
from training.fit.settings import TrainingConfig
from training.paper import attention_variants
from training.paper.attention_variants import RANDOM_FEATURES, VariantSGFormer, kernel_attention, train_variant
from training.paper.research_training import train_module


def test_the_linear_variant_is_the_model_that_is_served() -> None:
    data = labelled()
    model = SGFormer(config(data)).eval()
    variant = VariantSGFormer(config(data)).eval()
    variant.load_weights(model.weights())
    with torch.inference_mode():
        torch.testing.assert_close(variant(variant.prepare(data.graph)), model(model.prepare(data.graph)))


@pytest.mark.parametrize("function", ["softmax", "gat"])
def test_a_function_of_pairs_is_what_its_formula_says(function: Any) -> None:
    torch.manual_seed(0)
    data = labelled()
    model = VariantSGFormer(config(data, heads=1, value_map=False), function).double()
    states = torch.randn(6, model.config.hidden, dtype=torch.float64)
    query, key = (states @ part.weight.t() + part.bias for part in (model.query, model.key))
    expected = []
    for node in range(6):
        if function == "softmax":
            scores = torch.stack([query[node] @ key[other] / model.config.hidden**0.5 for other in range(6)])
        else:
            assert model.pair is not None
            both = [torch.cat([states[node], states[other]]) @ model.pair.weight[0] for other in range(6)]
            scores = torch.stack([score if score > 0 else 0.2 * score for score in both])
        expected.append((scores.exp() / scores.exp().sum()) @ states)
    torch.testing.assert_close(model.attend_all(states), torch.stack(expected))


def test_the_kernel_approaches_the_softmax_with_many_features(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 9, 4, dtype=torch.float64) / 2 for _ in range(3))
    exact = (query @ key.transpose(1, 2) / 2).softmax(dim=2) @ value
    few = (kernel_attention(query, key, value) - exact).abs().mean()
    monkeypatch.setattr(attention_variants, "RANDOM_FEATURES", 1000 * RANDOM_FEATURES)
    many = (kernel_attention(query, key, value) - exact).abs().mean()
    assert many < 0.005 < few


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("function", ["linear", "softmax", "gat", "nodeformer"])
def test_every_variant_learns(function: Any, depth: int) -> None:
    data = labelled()
    settings = {"epochs": 40, "learning_rate": 0.02, "hidden": 16, "attention_dropout": 0.0, "gnn_dropout": 0.0}
    run = train_variant(data, settings, 0, function, depth)
    assert run.test > 60
    assert run.epoch_seconds > 0


def test_too_many_pairs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_variants, "MAX_PAIRS", 100)
    with pytest.raises(ValueError, match="softmax holds all pairs of nodes, at most 100"):
        train_variant(labelled(), {}, 0, "softmax")


def test_the_test_labels_choose_no_epoch() -> None:
    data = labelled()
    shuffled = np.where(data.split == 2, (data.labels + 1) % 3, data.labels)
    made = []
    for labels in (data.labels, shuffled):
        torch.manual_seed(0)
        model = SGFormer(config(data))
        graph = model.prepare(data.graph)
        parameters = [p for p in model.parameters() if p.requires_grad]

        def forward(model: SGFormer = model, graph: Any = graph) -> torch.Tensor:
            return model(graph)  # type: ignore[no-any-return]

        made.append(train_module(model, forward, (parameters, []), replace(data, labels=labels), TrainingConfig(epochs=20)))
    assert made[0].validation == made[1].validation
    assert made[0].test != made[1].test
