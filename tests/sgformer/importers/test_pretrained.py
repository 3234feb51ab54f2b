"""Imported weights give the answers of their original implementation; the error names a tensor that does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.nn.models import SGFormer as PygSGFormer

from sgformer import Graph, WeightsError, from_authors_large, from_authors_medium, from_pyg
from sgformer.full_graph.forward import full_logits
from tests.sgformer.cases import assert_close
from tests.sgformer.importers import authors

WIDE, HIDDEN, OUT = 6, 8, 3
LARGE_SWITCHES = (
    "trans_use_bn",
    "trans_use_residual",
    "trans_use_act",
    "gnn_use_weight",
    "gnn_use_bn",
    "gnn_use_residual",
    "gnn_use_act",
)


@pytest.fixture(scope="module")
def graph() -> Graph:
    rng = np.random.default_rng(3)
    return Graph.build(rng.normal(size=(40, WIDE)), rng.integers(0, 40, size=(2, 90)))


def pyg_model(heads: int = 1, layers: int = 3, aggregate: str = "add", attention_layers: int = 1) -> PygSGFormer:
    torch.manual_seed(0)
    model = PygSGFormer(
        WIDE,
        HIDDEN,
        OUT,
        trans_num_layers=attention_layers,
        trans_num_heads=heads,
        gnn_num_layers=layers,
        graph_weight=0.3,
        aggregate=aggregate,
    )
    for name, buffer in model.named_buffers():  # running statistics that differ from their initial values
        if name.endswith("running_mean"):
            buffer.copy_(torch.randn_like(buffer))
        elif name.endswith("running_var"):
            buffer.copy_(torch.rand_like(buffer) + 0.5)
    return model.eval()


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("layers", [0, 1, 3])
@pytest.mark.parametrize("aggregate", ["add", "cat"])
def test_equals_pytorch_geometric(graph: Graph, heads: int, layers: int, aggregate: str) -> None:
    theirs = pyg_model(heads, layers, aggregate)
    features = torch.from_numpy(graph.features).float()
    edges = torch.from_numpy(graph.adjacency.edge_index())
    with torch.no_grad():
        expected = theirs(features, edges, torch.zeros(graph.num_nodes, dtype=torch.long)).numpy()
    model = from_pyg(theirs.state_dict(), graph_weight=0.3)
    ours = torch.log_softmax(model(model.prepare(graph)), dim=-1).detach().numpy()
    assert np.abs(ours - expected).max() <= 1e-5
    streamed = full_logits(model.config, model.weights(), graph)
    assert np.abs(torch.log_softmax(torch.from_numpy(streamed), dim=-1).numpy() - expected).max() <= 1e-5


@given(st.data())
def test_equals_the_authors_large_graph_model(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    graph = Graph.build(rng.normal(size=(15, WIDE)), rng.integers(0, 15, size=(2, 25)))
    heads, layers = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 3))
    shape = {name: data.draw(st.booleans()) for name in ("init", "value_map", "cat")}
    switches: dict[str, Any] = {name: data.draw(st.booleans()) for name in LARGE_SWITCHES}
    switches |= {"graph_weight": data.draw(st.sampled_from([0.0, 0.8])), "alpha": data.draw(st.sampled_from([0.5, 0.9]))}
    state = authors.large_state(WIDE, HIDDEN, OUT, heads, layers, **shape)
    model = from_authors_large(state, **switches)
    assert model.config.normalization == "frobenius"
    ours = full_logits(model.config, model.weights(), graph, dtype=np.float64)
    assert_close(ours, authors.large_forward(state, graph, heads, layers, **switches))


@given(st.data())
def test_equals_the_authors_medium_graph_model(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    graph = Graph.build(rng.normal(size=(15, WIDE)), rng.integers(0, 15, size=(2, 25)))
    heads, layers, cat = data.draw(st.integers(1, 3)), data.draw(st.integers(2, 4)), data.draw(st.booleans())
    switches: dict[str, Any] = {
        "use_bn": data.draw(st.booleans()),
        "use_residual": data.draw(st.booleans()),
        "graph_weight": data.draw(st.sampled_from([0.5, 0.8])),
        "alpha": data.draw(st.sampled_from([0.5, 0.9])),
    }
    state = authors.medium_state(WIDE, HIDDEN, OUT, heads, layers, cat)
    model = from_authors_medium(state, **switches)
    ours = full_logits(model.config, model.weights(), graph, dtype=np.float64)
    assert_close(ours, authors.medium_forward(state, graph, heads, layers, **switches))


def test_torch_tensors_and_arrays_are_both_read() -> None:
    state = authors.large_state(WIDE, HIDDEN, OUT)
    as_tensors = {name: torch.from_numpy(array) for name, array in state.items()}
    left, right = from_authors_large(state).weights(), from_authors_large(as_tensors).weights()
    for name, array in left.items():
        np.testing.assert_array_equal(array, right[name])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("trans_conv.attns.0.k.weight"), r"missing tensor trans_conv\.attns\.0\.k\.weight"),
        (lambda state: state.pop("fc.bias"), r"missing tensor fc\.bias"),
        (lambda state: state.update({"trans_conv.extra": torch.zeros(1)}), r"unknown tensor\(s\): trans_conv\.extra"),
        (
            lambda state: state.update({"graph_conv.convs.1.bias": torch.zeros(HIDDEN + 1)}),
            rf"graph_layers\.1\.bias has shape \({HIDDEN + 1},\), expected \({HIDDEN},\)",
        ),
        (
            lambda state: state.update({"trans_conv.attns.0.q.weight": torch.zeros(HIDDEN + 1, HIDDEN)}),
            rf"query\.weight has {HIDDEN + 1} rows, expected a multiple of the hidden size {HIDDEN}",
        ),
        (lambda state: state.update({"fc.weight": torch.zeros(5)}), r"output\.weight has shape \(5,\), expected a matrix"),
    ],
)
def test_the_error_names_the_tensor_that_does_not_fit(change: Any, message: str) -> None:
    state = dict(pyg_model().state_dict())
    change(state)
    with pytest.raises(WeightsError, match=message):
        from_pyg(state)


def test_unusual_tensors_of_the_authors_are_refused_by_name_or_converted() -> None:
    state = authors.large_state(WIDE, HIDDEN, OUT)
    with pytest.raises(WeightsError, match=r"graph_layers\.0\.weight has shape \(3,\), expected \(8, 8\)"):
        from_authors_large(state | {"graph_conv.convs.0.W.weight": np.zeros(3)})
    with pytest.raises(WeightsError, match=r"output\.weight holds int64, expected floats"):
        from_authors_large(state | {"fc.weight": np.zeros((OUT, HIDDEN), dtype=np.int64)})
    with pytest.raises(WeightsError, match=r"query\.bias holds NaN or infinity"):
        from_authors_large(state | {"trans_conv.convs.0.Wq.bias": np.full(HIDDEN, np.nan)})
    half = {name: torch.from_numpy(array).to(torch.bfloat16) for name, array in state.items()}
    assert from_authors_large(half).weights()["output.weight"].dtype == np.float32


def test_more_than_one_attention_layer_is_refused_with_the_reason() -> None:
    with pytest.raises(WeightsError, match="2 attention layers; only one can be served exactly, because a new node changes"):
        from_pyg(pyg_model(attention_layers=2).state_dict())
    shapes = authors.attention_shapes(WIDE, HIDDEN, 1, value_map=True, layers=3)
    with pytest.raises(WeightsError, match="3 attention layers"):
        from_authors_medium(authors.random_state(shapes))
