"""The names and shapes of the tensors of a model, for the trainable module, serving, importers and snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sgformer.config import ModelConfig
from sgformer.errors import WeightsError

Shapes = dict[str, tuple[int, ...]]


def expected_shapes(config: ModelConfig) -> Shapes:
    """The tensors of a model with this configuration. Linear weights are (out, in), as in torch."""
    width, hidden = config.in_features, config.hidden
    shapes = _linear("input", hidden, width) | _layer_norm("input_norm", hidden, config.input_layer_norm)
    for name in ("query", "key", "value") if config.value_map else ("query", "key"):
        shapes |= _linear(name, config.heads * hidden, hidden, bias=config.qkv_bias)
    shapes |= _layer_norm("attention_norm", hidden, config.attention_layer_norm)
    if config.gnn_input == "own":
        shapes |= _linear("graph_input", hidden, width) | _graph_norm("graph_input_norm", config)
    elif config.gnn_input == "features":
        shapes |= _linear("graph_input", hidden, width, bias=False)
    for layer in range(config.layers):
        shapes |= _graph_layer(config, layer)
    shapes |= _linear("output", config.out_features, config.embedding_size)
    if config.feature_transform == "standard":
        shapes |= {"feature_mean": (width,), "feature_scale": (width,)}
    return shapes


def layer_has_weight(config: ModelConfig, layer: int) -> bool:
    """Whether the layer has its own weight. With `gnn_input="features"` layer 0 uses `graph_input`: P (X W) costs less."""
    return config.gnn_weight and not (config.gnn_input == "features" and layer == 0)


def layer_is_plain(config: ModelConfig, layer: int) -> bool:
    """Whether the layer has no norm, activation or residual."""
    return config.gnn_plain_last and layer == config.layers - 1


def layer_reads(config: ModelConfig, layer: int) -> int | None:
    """The index in `NodeStates.layers` of the state of the same node that this layer reads besides its aggregate: 0 is the
    GCN's input, `layer` the output of the layer before. None if it reads no such state.
    """
    if config.gnn_init or (config.gnn_residual and not layer_is_plain(config, layer)):
        return 0
    reads_features = config.gnn_input == "features" and layer == 0
    return layer if config.gnn_layer_residual and not reads_features and not layer_is_plain(config, layer) else None


def check_weights(config: ModelConfig, weights: Mapping[str, Any]) -> None:
    """Raises WeightsError, which names every tensor that is missing, unknown, of the wrong shape, or not finite."""
    expected = expected_shapes(config)
    problems = [f"missing {name} {shape}" for name, shape in expected.items() if name not in weights]
    problems += [f"unknown {name}" for name in weights if name not in expected]
    for name, shape in expected.items():
        if name not in weights:
            continue
        array = np.asarray(weights[name])
        if array.shape != shape:
            problems.append(f"{name} has shape {array.shape}, expected {shape}")
        elif array.dtype.kind != "f":
            problems.append(f"{name} holds {array.dtype}, expected floats")
        elif not np.isfinite(array).all():
            problems.append(f"{name} holds NaN or infinity")
    if problems:
        raise WeightsError("; ".join(problems))


def _graph_layer(config: ModelConfig, layer: int) -> Shapes:
    hidden, name = config.hidden, f"graph_layers.{layer}"
    shapes: Shapes = {}
    if layer_has_weight(config, layer):
        shapes[f"{name}.weight"] = (hidden, hidden * (2 if config.gnn_init else 1))
    if config.gnn_weight:
        shapes[f"{name}.bias"] = (hidden,)
    return shapes | ({} if layer_is_plain(config, layer) else _graph_norm(f"{name}.norm", config))


def _graph_norm(name: str, config: ModelConfig) -> Shapes:
    layer = _layer_norm(name, config.hidden, config.gnn_layer_norm)
    return layer | _batch_norm(name, config.hidden, config.gnn_batch_norm)


def _linear(name: str, out: int, into: int, bias: bool = True) -> Shapes:
    return {f"{name}.weight": (out, into)} | ({f"{name}.bias": (out,)} if bias else {})


def _layer_norm(name: str, size: int, present: bool) -> Shapes:
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)} if present else {}


def _batch_norm(name: str, size: int, present: bool) -> Shapes:
    return {f"{name}.{part}": (size,) for part in ("weight", "bias", "running_mean", "running_var")} if present else {}
