"""Weights from elsewhere: PyTorch Geometric's `SGFormer` and the authors' published code, each with its own configuration.

A state dict does not hold everything: the mixing weights and the on/off switches are arguments, under the names and with
the defaults of their own constructors. What a state dict does hold (sizes, heads, layers, which maps exist) is read from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sgformer.config import Combine, ModelConfig, Task
from sgformer.errors import WeightsError
from sgformer.torch_model.model import SGFormer
from sgformer.weights import check_weights

State = Mapping[str, Any]
"""Names to torch tensors or numpy arrays."""


def from_pyg(state: State, *, graph_weight: float = 0.5, task: Task = "multiclass") -> SGFormer:
    """From the state dict of `torch_geometric.nn.models.SGFormer(trans_num_layers=1, ...)`.

    Row normalisation and its epsilon come along: PyG's attention is not the paper's (docs/mathematics.md section 2).
    """
    tensors = _Tensors(state)
    _refuse_more_attention(tensors, "trans_conv.attns.{}.q.weight")
    _move_input(tensors)
    for ours, theirs in (("query", "q"), ("key", "k"), ("value", "v")):
        tensors.move(f"trans_conv.attns.0.{theirs}.weight", f"{ours}.weight")
    _move_own_graph_input(tensors)
    layers = tensors.count("graph_conv.convs.{}.bias")
    for layer in range(layers):
        tensors.move(f"graph_conv.convs.{layer}.lin.weight", f"graph_layers.{layer}.weight")
        tensors.move(f"graph_conv.convs.{layer}.bias", f"graph_layers.{layer}.bias")
        tensors.move_batch_norm(f"graph_conv.bns.{layer + 1}", f"graph_layers.{layer}.norm")
    return _build(
        tensors,
        layers=layers,
        alpha=graph_weight,
        normalization="row",
        gnn_input="own",
        qkv_bias=False,
        attention_residual=0.5,
        attention_activation=True,
        gnn_residual=True,
        task=task,
    )


def from_authors_large(
    state: State,
    *,
    graph_weight: float = 0.8,
    alpha: float = 0.5,
    trans_use_bn: bool = True,
    trans_use_residual: bool = True,
    trans_use_act: bool = True,
    gnn_use_weight: bool = True,
    gnn_use_bn: bool = True,
    gnn_use_residual: bool = True,
    gnn_use_act: bool = True,
    task: Task = "multiclass",
) -> SGFormer:
    """From the state dict of the authors' large-graph code (`large/ours.py`, `100M/ours.py`).

    `alpha` is their weight of the attention residual, `graph_weight` ours and the paper's alpha. `use_init` and the value
    map are read from the tensors. Their code keeps tensors of parts that are switched off; those are left out here.
    """
    tensors = _Tensors(state)
    _refuse_more_attention(tensors, "trans_conv.convs.{}.Wq.weight")
    _move_input(tensors)
    value_map = _move_authors_attention(tensors)
    _move_own_graph_input(tensors)
    layers = tensors.count("graph_conv.convs.{}.W.weight")
    uses_init = False
    for layer in range(layers):
        weight = tensors.move_linear(f"graph_conv.convs.{layer}.W", f"graph_layers.{layer}")
        uses_init = weight.ndim == 2 and weight.shape[1] == 2 * weight.shape[0]
        tensors.move_batch_norm(f"graph_conv.bns.{layer + 1}", f"graph_layers.{layer}.norm")
    _drop_unused(tensors, layer_norm=trans_use_bn, batch_norm=gnn_use_bn)
    if not gnn_use_weight and not uses_init:
        tensors.drop(lambda name: name.startswith("graph_layers.") and name.split(".")[2] in ("weight", "bias"))
    return _build(
        tensors,
        layers=layers,
        alpha=graph_weight,
        gnn_input="own",
        value_map=value_map,
        attention_residual=alpha if trans_use_residual else None,
        input_layer_norm=trans_use_bn,
        attention_layer_norm=trans_use_bn,
        attention_activation=trans_use_act,
        gnn_weight=gnn_use_weight or uses_init,
        gnn_init=uses_init,
        gnn_batch_norm=gnn_use_bn,
        gnn_activation=gnn_use_act,
        gnn_residual=gnn_use_residual,
        task=task,
    )


def from_authors_medium(
    state: State,
    *,
    graph_weight: float = 0.8,
    alpha: float = 0.5,
    use_bn: bool = True,
    use_residual: bool = True,
    task: Task = "multiclass",
) -> SGFormer:
    """From the state dict of the authors' medium-graph code (`medium/ours.py` with its `GCN` backbone).

    `use_bn` is one switch for the layer norms and the batch norms there. Their `use_act` never reaches the attention layer,
    so there is no activation after it whatever it said.
    """
    tensors = _Tensors(state)
    _refuse_more_attention(tensors, "trans_conv.convs.{}.Wq.weight")
    _move_input(tensors)
    value_map = _move_authors_attention(tensors)
    layers = tensors.count("gnn.convs.{}.bias")
    for layer in range(layers):
        ours = "graph_input" if layer == 0 else f"graph_layers.{layer}"
        tensors.move(f"gnn.convs.{layer}.lin.weight", f"{ours}.weight")
        tensors.move(f"gnn.convs.{layer}.bias", f"graph_layers.{layer}.bias")
        if layer < layers - 1:
            tensors.move_batch_norm(f"gnn.bns.{layer}", f"graph_layers.{layer}.norm")
    _drop_unused(tensors, layer_norm=use_bn, batch_norm=use_bn)
    return _build(
        tensors,
        layers=layers,
        alpha=graph_weight,
        gnn_input="features",
        value_map=value_map,
        attention_residual=alpha if use_residual else None,
        input_layer_norm=use_bn,
        attention_layer_norm=use_bn,
        gnn_batch_norm=use_bn,
        gnn_plain_last=True,
        task=task,
    )


class _Tensors:
    """A state dict on its way from their names to ours; what was not moved is unknown."""

    def __init__(self, state: State) -> None:
        self.theirs = {name: _as_array(tensor) for name, tensor in state.items()}
        self.ours: dict[str, NDArray[Any]] = {}

    def move(self, theirs: str, ours: str) -> NDArray[Any]:
        if theirs not in self.theirs:
            raise WeightsError(f"missing tensor {theirs}")
        self.ours[ours] = self.theirs.pop(theirs)
        return self.ours[ours]

    def move_linear(self, theirs: str, ours: str) -> NDArray[Any]:
        self.move(f"{theirs}.bias", f"{ours}.bias")
        return self.move(f"{theirs}.weight", f"{ours}.weight")

    def move_batch_norm(self, theirs: str, ours: str) -> None:
        for part in ("weight", "bias", "running_mean", "running_var"):
            self.move(f"{theirs}.{part}", f"{ours}.{part}")
        self.theirs.pop(f"{theirs}.num_batches_tracked", None)

    def drop(self, chosen: Any) -> None:
        self.ours = {name: array for name, array in self.ours.items() if not chosen(name)}

    def count(self, pattern: str) -> int:
        number = 0
        while pattern.format(number) in self.theirs:
            number += 1
        return number


def _as_array(tensor: Any) -> NDArray[Any]:
    if not isinstance(tensor, torch.Tensor):
        return np.asarray(tensor)
    tensor = tensor.detach().cpu()
    # numpy has no bfloat16; float32 holds all of its values.
    return np.asarray((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy())


def _refuse_more_attention(tensors: _Tensors, pattern: str) -> None:
    layers = tensors.count(pattern)
    if layers > 1:
        raise WeightsError(
            f"this model has {layers} attention layers; only one can be served exactly, because a new node moves every "
            "output of the first layer and with it the sums of the second (the paper's model has one)"
        )


def _move_input(tensors: _Tensors) -> None:
    tensors.move_linear("trans_conv.fcs.0", "input")
    tensors.move_linear("trans_conv.bns.0", "input_norm")
    tensors.move_linear("trans_conv.bns.1", "attention_norm")


def _move_authors_attention(tensors: _Tensors) -> bool:
    """Returns whether the model has a value map (their `use_weight`)."""
    tensors.move_linear("trans_conv.convs.0.Wq", "query")
    tensors.move_linear("trans_conv.convs.0.Wk", "key")
    value_map = "trans_conv.convs.0.Wv.weight" in tensors.theirs
    if value_map:
        tensors.move_linear("trans_conv.convs.0.Wv", "value")
    return value_map


def _move_own_graph_input(tensors: _Tensors) -> None:
    tensors.move_linear("graph_conv.fcs.0", "graph_input")
    tensors.move_batch_norm("graph_conv.bns.0", "graph_input_norm")


def _drop_unused(tensors: _Tensors, layer_norm: bool, batch_norm: bool) -> None:
    if not layer_norm:
        tensors.drop(lambda name: name.startswith(("input_norm.", "attention_norm.")))
    if not batch_norm:
        tensors.drop(lambda name: name.startswith("graph_input_norm.") or ".norm." in name)


def _build(tensors: _Tensors, **switches: Any) -> SGFormer:
    """The model, with its sizes read from the moved tensors; everything that does not fit is named."""
    tensors.move_linear("fc", "output")
    if tensors.theirs:
        raise WeightsError(f"unknown tensor(s): {', '.join(sorted(tensors.theirs))}")
    ours = tensors.ours
    hidden, wide = _matrix_shape(ours, "input.weight")
    joined, _ = _matrix_shape(ours, "query.weight")
    out, embedding = _matrix_shape(ours, "output.weight")
    if joined % hidden:
        raise WeightsError(f"query.weight has {joined} rows, expected a multiple of the hidden size {hidden}")
    combine: Combine = "cat" if embedding == 2 * hidden else "add"
    config = ModelConfig(
        in_features=wide, out_features=out, hidden=hidden, heads=joined // hidden, combine=combine, **switches
    )
    check_weights(config, ours)
    model = SGFormer(config).to(torch.float64 if ours["output.weight"].dtype == np.float64 else torch.float32).eval()
    model.load_weights(ours)
    return model


def _matrix_shape(ours: dict[str, NDArray[Any]], name: str) -> tuple[int, int]:
    shape = ours[name].shape
    if len(shape) != 2:
        raise WeightsError(f"{name} has shape {shape}, expected a matrix")
    return int(shape[0]), int(shape[1])
