"""The gradients that are written by hand are right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings

from sgformer import Graph, ModelConfig, SGFormer
from sgformer.torch_model.attention import attend, unit_rows
from sgformer.torch_model.dropout import dropout
from sgformer.torch_model.propagation import Propagation, SparseFeatures
from tests.sgformer.cases import Case, cases, graphs, sparsified


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


@pytest.mark.parametrize("heads", [1, 3])
def test_attention(heads: int) -> None:
    inputs = [rows(heads, 7, 4, seed=seed) for seed in range(3)]
    scale = torch.tensor(0.05, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(attend, (*inputs, scale))


def test_attention_of_some_queries() -> None:
    inputs = [rows(2, size, 4, seed=seed) for seed, size in enumerate((3, 7, 7))]
    scale = torch.tensor(0.05, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(attend, (*inputs, scale, rows(2, 3, 4, seed=9)))


def test_unit_rows() -> None:
    assert torch.autograd.gradcheck(lambda x: unit_rows(x, 1e-6), rows(2, 5, 3))


def test_unit_rows_fill_exact_zeros() -> None:
    unit = unit_rows(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), 1e-6)
    torch.testing.assert_close(unit, torch.tensor([[0.5**0.5, 0.5**0.5], [0.6, 0.8]]))


@settings(max_examples=30)
@given(graphs(sparse=False))
def test_propagation_is_its_own_gradient(graph: Graph) -> None:
    assert torch.autograd.gradcheck(Propagation.of(graph.adjacency, torch.float64), rows(graph.num_nodes, 3))


def test_sparse_features() -> None:
    features = SparseFeatures(
        sparsified(np.random.default_rng(0).normal(size=(9, 5)), np.random.default_rng(1)), torch.float64
    )
    assert torch.autograd.gradcheck(lambda weight: features @ weight, rows(5, 3))


@settings(max_examples=40)
@given(cases())
def test_the_whole_model_trains_every_parameter_it_uses(case: Case) -> None:
    """Sparse and dense features, every switch: the gradients equal finite differences along a random direction."""
    config = replace(case.config, attention_activation=False, gnn_activation=False)
    model = SGFormer(config).double().eval()
    model.load_weights(case.weights())
    inputs, direction = model.prepare(case.graph), torch.Generator().manual_seed(0)
    parameters = [p for p in model.parameters() if p.requires_grad]
    steps = [torch.randn(p.shape, dtype=p.dtype, generator=direction) for p in parameters]
    answers = model(inputs)
    assume(bool(torch.isfinite(answers).all()))  # a node without an answer has no gradient
    slopes = torch.autograd.grad(answers.square().sum(), parameters, allow_unused=True)
    expected = sum(float((s * g).sum()) for s, g in zip(steps, slopes, strict=True) if g is not None)

    def moved(distance: float) -> float:
        with torch.no_grad():
            for parameter, step in zip(parameters, steps, strict=True):
                parameter.add_(step, alpha=distance)
            value = float(model(inputs).square().sum())
            for parameter, step in zip(parameters, steps, strict=True):
                parameter.sub_(step, alpha=distance)
        return value

    slopes_by_step = np.array([(moved(h) - moved(-h)) / (2 * h) for h in (1e-5, 1e-6, 1e-7)]) / max(1.0, abs(expected))
    # The finite differences disagree near a kink of the input layer's ReLU or a division by almost zero: skip the case.
    assume(bool(np.isfinite(slopes_by_step).all()) and np.ptp(slopes_by_step) < 1e-3)
    assert np.abs(slopes_by_step - expected / max(1.0, abs(expected))).min() < 1e-4


@pytest.mark.parametrize("training", [False, True])
@settings(max_examples=40)
@given(case=cases())
def test_the_logits_of_some_nodes_equal_their_rows_of_all_logits(case: Case, training: bool) -> None:
    """Values and gradients, also in training, where a batch norm reads all rows."""
    assume(case.config.hidden > 1)  # the norm of a single number has no gradient, only rounding errors
    config = replace(case.config, attention_dropout=0.0, gnn_dropout=0.0)
    model = SGFormer(config).double().train(training)
    model.load_weights(case.weights())
    inputs = model.prepare(case.graph)
    nodes = torch.randperm(case.graph.num_nodes, generator=torch.Generator().manual_seed(0))[: case.graph.num_nodes // 2 + 1]
    parameters = [p for p in model.parameters() if p.requires_grad]
    all_logits = model(inputs)
    assume(bool(torch.isfinite(all_logits).all()))  # a node without an answer makes every gradient NaN
    some, expected = model(inputs, nodes), all_logits[nodes]
    torch.testing.assert_close(some, expected, rtol=1e-10, atol=1e-10)
    slopes = [torch.autograd.grad(out.square().sum(), parameters, allow_unused=True) for out in (some, expected)]
    for ours, plain in zip(*slopes, strict=True):
        assert (ours is None) == (plain is None)
        if ours is not None:
            torch.testing.assert_close(ours, plain, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("gnn_input", ["shared", "features"])
def test_a_model_without_attention_trains_the_parameters_that_it_uses(gnn_input: str) -> None:
    graph = Graph.build(np.random.default_rng(0).normal(size=(9, 5)), np.array([[0, 1, 2], [3, 4, 5]]))
    model = SGFormer(ModelConfig(in_features=5, out_features=3, hidden=4, alpha=1.0, gnn_input=gnn_input))  # type: ignore[arg-type]
    model(model.prepare(graph)).square().sum().backward()
    used = {name for name, tensor in model.named_parameters() if tensor.grad is not None}
    assert used == {name for name, tensor in model.named_parameters() if tensor.requires_grad}
    assert ("input.weight" in used) == (gnn_input == "shared")
    assert "query.weight" not in used


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("relu", [False, True])
def test_dropout_drops_its_share_and_keeps_the_mean(share: float, relu: bool) -> None:
    torch.manual_seed(0)
    inputs = torch.ones(500, 400, requires_grad=True)
    out = dropout(inputs, share, training=True, relu=relu)
    assert abs(float((out == 0).float().mean()) - share) < 0.005
    assert abs(float(out.detach().mean()) - 1) < 0.02
    out.sum().backward()
    torch.testing.assert_close(inputs.grad, out.detach())


def test_the_four_random_integers_of_a_word_are_independent() -> None:
    """Four random integers come from a 64-bit word: each must be uniform, and they must not be correlated."""
    torch.manual_seed(0)
    kept = (dropout(torch.ones(400_000), 0.5, training=True) > 0).double().view(-1, 4)
    assert (kept.mean(dim=0) - 0.5).abs().max() < 0.005
    assert (torch.corrcoef(kept.T) - torch.eye(4)).abs().max() < 0.01


def test_dropout_with_relu_passes_no_gradient_where_relu_does_not() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(1000, requires_grad=True)
    dropout(inputs, 0.3, training=True, relu=True).sum().backward()
    assert inputs.grad is not None
    assert (inputs.grad[inputs <= 0] == 0).all()
    assert 0.6 < float((inputs.grad[inputs > 0] > 0).float().mean()) < 0.8


def test_dropout_is_reproducible_and_off_in_evaluation() -> None:
    inputs = torch.randn(50, 3)
    results = []
    for _ in range(2):
        torch.manual_seed(5)
        results.append(dropout(inputs, 0.4, training=True))
    assert torch.equal(*results)
    assert dropout(inputs, 0.4, training=False) is inputs
