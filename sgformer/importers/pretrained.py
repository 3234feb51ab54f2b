"""Imports weights of PyTorch Geometric's `SGFormer` and of the authors' published code.

A state dict does not hold everything: mixing weights and on/off switches are arguments here, with the names and defaults of
the other implementation. Sizes, heads, layers and the presence of a value map are read from the tensors.

A `Layout` says how one implementation names the tensors that `sgformer.weights` lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sgformer.config import ModelConfig, Task
from sgformer.errors import WeightsError
from sgformer.torch_model.model import SGFormer
from sgformer.weights import expected_shapes

State = Mapping[str, Any]
"""Torch tensors or numpy arrays, by name."""
Names = dict[str, str]
"""Names in the state dict, by our names of the modules or tensors."""


class Layout(NamedTuple):
    """The names of the tensors in the state dict of one implementation."""

    modules: Names
    attention: str
    """The name of a linear map of attention layer `{}`; `%s` is q, k or v."""
    layer: Names
    """The names of the parts of GCN layer `{}`; `{next}` is the number of the layer plus one."""


INPUTS_AND_OUTPUT: Names = {
    "input": "trans_conv.fcs.0",
    "input_norm": "trans_conv.bns.0",
    "attention_norm": "trans_conv.bns.1",
    "output": "fc",
}
OWN_GRAPH_INPUT: Names = {"graph_input": "graph_conv.fcs.0", "graph_input_norm": "graph_conv.bns.0"}
PYG = Layout(
    INPUTS_AND_OUTPUT | OWN_GRAPH_INPUT,
    "trans_conv.attns.{}.%s",
    {"weight": "graph_conv.convs.{}.lin.weight", "bias": "graph_conv.convs.{}.bias", "norm": "graph_conv.bns.{next}"},
)
AUTHORS_LARGE = Layout(
    INPUTS_AND_OUTPUT | OWN_GRAPH_INPUT,
    "trans_conv.convs.{}.W%s",
    {"weight": "graph_conv.convs.{}.W.weight", "bias": "graph_conv.convs.{}.W.bias", "norm": "graph_conv.bns.{next}"},
)
AUTHORS_MEDIUM = Layout(
    INPUTS_AND_OUTPUT | {"graph_input": "gnn.convs.0.lin"},
    "trans_conv.convs.{}.W%s",
    {"weight": "gnn.convs.{}.lin.weight", "bias": "gnn.convs.{}.bias", "norm": "gnn.bns.{}"},
)


def from_pyg(state: State, *, graph_weight: float = 0.5, task: Task = "multiclass") -> SGFormer:
    """From the state dict of `torch_geometric.nn.models.SGFormer(trans_num_layers=1, ...)`.

    The model keeps PyG's row normalisation and its epsilon, which differ from the paper (docs/mathematics.md section 2).
    """
    return _import(
        state,
        PYG,
        alpha=graph_weight,
        normalization="row",
        gnn_input="own",
        qkv_bias=False,
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

    `alpha` is their weight of the attention residual; `graph_weight` is the alpha of the paper and of `ModelConfig`.
    `use_init` and the value map are read from the tensors.
    """
    shape = np.shape(state.get(AUTHORS_LARGE.layer["weight"].format(0), ()))
    uses_init = len(shape) == 2 and shape[1] == 2 * shape[0]
    return _import(
        state,
        AUTHORS_LARGE,
        alpha=graph_weight,
        gnn_input="own",
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

    Their `use_bn` switches the layer norms and the batch norms. Their `use_act` has no effect on the attention layer, so the
    imported model has no activation after it.
    """
    return _import(
        state,
        AUTHORS_MEDIUM,
        alpha=graph_weight,
        gnn_input="features",
        attention_residual=alpha if use_residual else None,
        input_layer_norm=use_bn,
        attention_layer_norm=use_bn,
        gnn_batch_norm=use_bn,
        gnn_plain_last=True,
        task=task,
    )


def _import(state: State, layout: Layout, **switches: Any) -> SGFormer:
    """Builds the model that the tensors and the switches describe. Raises WeightsError, which names what does not fit."""
    _check_attention_layers(_count(state, f"{layout.attention % 'q'}.weight"))
    layers = _count(state, layout.layer["bias"])
    names = layout.modules | {name: (layout.attention % name[0]).format(0) for name in ("query", "key", "value")}
    for index in range(layers):
        parts = layout.layer.items()
        names |= {f"graph_layers.{index}.{part}": name.format(index, next=index + 1) for part, name in parts}
    tensors = {name: _as_array(tensor) for name, tensor in state.items()}
    hidden, in_features = _matrix_shape(tensors, names, "input.weight")
    query_rows, _ = _matrix_shape(tensors, names, "query.weight")
    out_features, embedding_size = _matrix_shape(tensors, names, "output.weight")
    if query_rows % hidden:
        raise WeightsError(f"query.weight has {query_rows} rows, expected a multiple of the hidden size {hidden}")
    config = ModelConfig(
        in_features=in_features,
        out_features=out_features,
        hidden=hidden,
        heads=query_rows // hidden,
        layers=layers,
        value_map=_source_name(names, "value.weight") in tensors,
        combine="cat" if embedding_size == 2 * hidden else "add",
        **switches,
    )
    weights = {name: _tensor(tensors, names, name) for name in expected_shapes(config)}
    # Allowed, but not used: tensors of parts that are switched off (authors' code), and batch counts of torch's batch norms.
    with_all = replace(config, input_layer_norm=True, attention_layer_norm=True, gnn_batch_norm=True, gnn_weight=True)
    recognised = {_source_name(names, name) for name in expected_shapes(with_all)}
    recognised |= {name.replace("running_var", "num_batches_tracked") for name in recognised}
    if unknown := sorted(set(tensors) - recognised):
        raise WeightsError(f"unknown tensor(s): {', '.join(unknown)}")
    model = SGFormer(config).to(torch.float64 if weights["output.weight"].dtype == np.float64 else torch.float32).eval()
    model.load_weights(weights)
    return model


def _source_name(names: Names, name: str) -> str:
    """The name in the state dict of our tensor `name`."""
    module, _, part = name.rpartition(".")
    return names[name] if name in names else f"{names[module]}.{part}"


def _tensor(tensors: dict[str, NDArray[Any]], names: Names, name: str) -> NDArray[Any]:
    source = _source_name(names, name)
    if source not in tensors:
        raise WeightsError(f"missing tensor {source}")
    return tensors[source]


def _matrix_shape(tensors: dict[str, NDArray[Any]], names: Names, name: str) -> tuple[int, int]:
    shape = _tensor(tensors, names, name).shape
    if len(shape) != 2:
        raise WeightsError(f"{name} has shape {shape}, expected a matrix")
    return shape


def _as_array(tensor: Any) -> NDArray[Any]:
    if not isinstance(tensor, torch.Tensor):
        return np.asarray(tensor)
    tensor = tensor.detach().cpu()
    # numpy has no bfloat16; float32 holds all of its values.
    return np.asarray((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy())


def _count(state: State, pattern: str) -> int:
    number = 0
    while pattern.format(number) in state:
        number += 1
    return number


def _check_attention_layers(layers: int) -> None:
    if layers > 1:
        raise WeightsError(
            f"this model has {layers} attention layers; only one can be served exactly, because a new node changes every "
            "output of the first layer and with it the sums of the second (the paper's model has one)"
        )
