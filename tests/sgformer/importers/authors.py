"""An oracle for the authors' checkpoints: random state dicts in their layouts, and the forward pass of their models.

Written from the published architecture with their tensor names, but not their code, in float64 with dense matrices.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sgformer import Graph
from tests.sgformer.naive import dense_features, propagation_matrix, relu

State = dict[str, np.ndarray]


def random_state(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> State:
    rng = np.random.default_rng(seed)
    state = {}
    for name, shape in shapes.items():
        if name.endswith("num_batches_tracked"):
            state[name] = np.array(7)
        else:
            values = rng.normal(size=shape)
            state[name] = np.abs(values) + 0.5 if name.endswith("running_var") else values
    return state


def linear_shapes(name: str, out: int, into: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


def norm_shapes(name: str, size: int, batch: bool) -> dict[str, tuple[int, ...]]:
    parts = ["weight", "bias"] + (["running_mean", "running_var", "num_batches_tracked"] if batch else [])
    return {f"{name}.{part}": () if part == "num_batches_tracked" else (size,) for part in parts}


def attention_shapes(wide: int, hidden: int, heads: int, value_map: bool, layers: int = 1) -> dict[str, tuple[int, ...]]:
    shapes = linear_shapes("trans_conv.fcs.0", hidden, wide) | norm_shapes("trans_conv.bns.0", hidden, batch=False)
    for layer in range(layers):
        for name in ("Wq", "Wk", "Wv") if value_map else ("Wq", "Wk"):
            shapes |= linear_shapes(f"trans_conv.convs.{layer}.{name}", heads * hidden, hidden)
        shapes |= norm_shapes(f"trans_conv.bns.{layer + 1}", hidden, batch=False)
    return shapes


def large_state(
    wide: int,
    hidden: int,
    out: int,
    heads: int = 1,
    layers: int = 2,
    init: bool = False,
    value_map: bool = True,
    cat: bool = False,
) -> State:
    shapes = attention_shapes(wide, hidden, heads, value_map)
    shapes |= linear_shapes("graph_conv.fcs.0", hidden, wide) | norm_shapes("graph_conv.bns.0", hidden, batch=True)
    for layer in range(layers):
        shapes |= linear_shapes(f"graph_conv.convs.{layer}.W", hidden, hidden * (2 if init else 1))
        shapes |= norm_shapes(f"graph_conv.bns.{layer + 1}", hidden, batch=True)
    return random_state(shapes | linear_shapes("fc", out, hidden * (2 if cat else 1)))


def medium_state(wide: int, hidden: int, out: int, heads: int = 1, layers: int = 3, cat: bool = False) -> State:
    shapes = attention_shapes(wide, hidden, heads, value_map=True)
    for layer in range(layers):
        shapes |= {
            f"gnn.convs.{layer}.bias": (hidden,),
            f"gnn.convs.{layer}.lin.weight": (hidden, hidden if layer else wide),
        }
        if layer < layers - 1:
            shapes |= norm_shapes(f"gnn.bns.{layer}", hidden, batch=True)
    return random_state(shapes | linear_shapes("fc", out, hidden * (2 if cat else 1)))


def linear(state: State, name: str, rows: np.ndarray) -> np.ndarray:
    return rows @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def normed(state: State, name: str, rows: np.ndarray) -> np.ndarray:
    """Layer norm, or evaluation-mode batch norm if there are running statistics."""
    if f"{name}.running_mean" in state:
        mean, var = state[f"{name}.running_mean"], state[f"{name}.running_var"]
    else:
        mean, var = rows.mean(axis=1, keepdims=True), rows.var(axis=1, keepdims=True)
    return (rows - mean) / np.sqrt(var + 1e-5) * state[f"{name}.weight"] + state[f"{name}.bias"]


def attention(state: State, x: np.ndarray, heads: int, options: dict[str, Any]) -> np.ndarray:
    """Their TransConv: the norm is over all rows and heads; numerator and denominator are multiplied by N."""
    z = linear(state, "trans_conv.fcs.0", x)
    if options["trans_use_bn"]:
        z = normed(state, "trans_conv.bns.0", z)
    z = relu(z)
    count, hidden = z.shape
    q = linear(state, "trans_conv.convs.0.Wq", z).reshape(count, heads, hidden)
    k = linear(state, "trans_conv.convs.0.Wk", z).reshape(count, heads, hidden)
    if "trans_conv.convs.0.Wv.weight" in state:
        v = linear(state, "trans_conv.convs.0.Wv", z).reshape(count, heads, hidden)
    else:
        v = np.repeat(z[:, None], heads, axis=1)
    q, k = q / np.sqrt((q**2).sum()), k / np.sqrt((k**2).sum())
    out = np.zeros_like(z)
    for head in range(heads):
        weights = q[:, head] @ k[:, head].T
        numerator = weights @ v[:, head] + count * v[:, head]
        out += numerator / (weights.sum(axis=1, keepdims=True) + count) / heads
    if options["trans_use_residual"]:
        out = options["alpha"] * out + (1 - options["alpha"]) * z
    if options["trans_use_bn"]:
        out = normed(state, "trans_conv.bns.1", out)
    return relu(out) if options["trans_use_act"] else out


def large_forward(state: State, graph: Graph, heads: int, layers: int, **options: Any) -> np.ndarray:
    x, p = dense_features(graph), propagation_matrix(graph)
    h = linear(state, "graph_conv.fcs.0", x)
    h = initial = relu(normed(state, "graph_conv.bns.0", h) if options["gnn_use_bn"] else h)
    for layer in range(layers):
        weight = state[f"graph_conv.convs.{layer}.W.weight"]
        h = p @ h
        if weight.shape[1] == 2 * weight.shape[0]:
            h = linear(state, f"graph_conv.convs.{layer}.W", np.concatenate([h, initial], axis=1))
        elif options["gnn_use_weight"]:
            h = linear(state, f"graph_conv.convs.{layer}.W", h)
        if options["gnn_use_bn"]:
            h = normed(state, f"graph_conv.bns.{layer + 1}", h)
        if options["gnn_use_act"]:
            h = relu(h)
        if options["gnn_use_residual"]:
            h = h + initial
    return combined(state, attention(state, x, heads, options), h, options["graph_weight"])


def medium_forward(state: State, graph: Graph, heads: int, layers: int, **options: Any) -> np.ndarray:
    x, p = dense_features(graph), propagation_matrix(graph)
    h = x
    for layer in range(layers):
        h = p @ (h @ state[f"gnn.convs.{layer}.lin.weight"].T) + state[f"gnn.convs.{layer}.bias"]
        if layer < layers - 1:
            h = relu(normed(state, f"gnn.bns.{layer}", h) if options["use_bn"] else h)
    attended = attention(
        state,
        x,
        heads,
        {
            "trans_use_bn": options["use_bn"],
            "trans_use_residual": options["use_residual"],
            "alpha": options["alpha"],
            "trans_use_act": False,
        },
    )
    return combined(state, attended, h, options["graph_weight"])


def combined(state: State, attended: np.ndarray, h: np.ndarray, graph_weight: float) -> np.ndarray:
    if state["fc.weight"].shape[1] == 2 * h.shape[1]:
        return linear(state, "fc", np.concatenate([attended, h], axis=1))
    return linear(state, "fc", graph_weight * h + (1 - graph_weight) * attended)
