"""The oracle: SGFormer as the paper defines it, with N x N matrices, in float64.

It shares no code with the package: it reads the weights by name and a dense adjacency matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgformer import Graph, ModelConfig, SparseRows

Matrix = NDArray[np.float64]


class Singular(Exception):  # noqa: N818
    """The model has no answer: all keys point away from a query, and its row of C sums to almost zero."""


def naive_forward(config: ModelConfig, weights: Mapping[str, Any], graph: Graph) -> tuple[Matrix, Matrix]:
    """(embeddings, logits) of every node."""
    w = {name: np.asarray(value, dtype=np.float64) for name, value in weights.items()}
    x = transform(config, w, dense_features(graph))
    z0 = linear(w, "input", x)
    if config.input_layer_norm:
        z0 = layer_norm(w, "input_norm", z0)
    z0 = relu(z0)
    attended = attention_branch(config, w, z0)
    propagated = graph_branch(config, w, x, z0, propagation_matrix(graph))
    if config.combine == "cat":
        embeddings = np.concatenate([attended, propagated], axis=1)
    else:
        embeddings = (1 - config.alpha) * attended + config.alpha * propagated
    return embeddings, linear(w, "output", embeddings)


def dense_features(graph: Graph) -> Matrix:
    rows = graph.features
    return (rows.toarray() if isinstance(rows, SparseRows) else rows).astype(np.float64)


def transform(config: ModelConfig, w: dict[str, Matrix], x: Matrix) -> Matrix:
    if config.feature_transform == "standard":
        return (x - w["feature_mean"]) / w["feature_scale"]
    if config.feature_transform == "row":
        return np.array([row / np.abs(row).sum() if np.abs(row).sum() > 0 else row for row in x])
    return x


def attention_matrix(config: ModelConfig, query: Matrix, key: Matrix) -> Matrix:
    """The row-normalised all-pair matrix C = diag(C1)^-1 (I + Q~ K~^T / N) for every head: (H, N, N)."""
    count = query.shape[0]
    if config.normalization == "frobenius":
        query, key = over_norm(query), over_norm(key)
    else:
        query, key = unit_rows(query), unit_rows(key)
    heads = []
    for head in range(query.shape[1]):
        c = np.eye(count) + query[:, head] @ key[:, head].T / count
        total = c.sum(axis=1, keepdims=True)
        if np.abs(total).min() < 1e-3:
            raise Singular
        heads.append(c / total)
    return np.stack(heads)


def over_norm(rows: Matrix) -> Matrix:
    """The only deviation from the authors' code: if all queries or keys are zero, they attend to nothing instead of NaN."""
    norm = np.linalg.norm(rows)
    return rows / norm if norm > 0 else rows


def unit_rows(rows: Matrix) -> Matrix:
    rows = np.where(rows == 0, 1e-6, rows)
    return rows / np.linalg.norm(rows, axis=2, keepdims=True)


def attention_branch(config: ModelConfig, w: dict[str, Matrix], z0: Matrix) -> Matrix:
    shape = (len(z0), config.heads, config.hidden)
    query, key = linear(w, "query", z0).reshape(shape), linear(w, "key", z0).reshape(shape)
    value = linear(w, "value", z0).reshape(shape) if config.value_map else np.stack([z0] * config.heads, axis=1)
    c = attention_matrix(config, query, key)
    out = np.mean([c[head] @ value[:, head] for head in range(config.heads)], axis=0)
    if config.attention_residual is not None:
        out = config.attention_residual * out + (1 - config.attention_residual) * z0
    if config.attention_layer_norm:
        out = layer_norm(w, "attention_norm", out)
    return relu(out) if config.attention_activation else out


def propagation_matrix(graph: Graph) -> Matrix:
    a = np.eye(graph.num_nodes)
    left, right = graph.adjacency.edge_index()
    a[left, right] = 1
    degree = a.sum(axis=1)
    return a / np.sqrt(np.outer(degree, degree))


def graph_branch(config: ModelConfig, w: dict[str, Matrix], x: Matrix, z0: Matrix, p: Matrix) -> Matrix:
    if config.gnn_input == "features":
        initial = x
    elif config.gnn_input == "own":
        initial = linear(w, "graph_input", x)
        if config.gnn_batch_norm:
            initial = batch_norm(w, "graph_input_norm", initial)
        if config.gnn_layer_norm:
            initial = layer_norm(w, "graph_input_norm", initial)
        initial = relu(initial)
    else:
        initial = z0
    h = initial
    for layer in range(config.layers):
        previous, h = h, graph_layer(config, w, layer, p @ h, initial)
        h = h + previous if adds_previous(config, layer) else h
    return h


def graph_layer(config: ModelConfig, w: dict[str, Matrix], layer: int, aggregate: Matrix, initial: Matrix) -> Matrix:
    name = f"graph_layers.{layer}"
    plain = config.gnn_plain_last and layer == config.layers - 1
    h = aggregate
    if config.gnn_init:
        h = np.concatenate([h, initial], axis=1)
    if config.gnn_input == "features" and layer == 0:
        h = h @ w["graph_input.weight"].T + w[f"{name}.bias"]
    elif config.gnn_weight:
        h = h @ w[f"{name}.weight"].T + w[f"{name}.bias"]
    if config.gnn_batch_norm and not plain:
        h = batch_norm(w, f"{name}.norm", h)
    if config.gnn_layer_norm and not plain:
        h = layer_norm(w, f"{name}.norm", h)
    if config.gnn_activation and not plain:
        h = relu(h)
    return h + initial if config.gnn_residual and not plain else h


def adds_previous(config: ModelConfig, layer: int) -> bool:
    plain = config.gnn_plain_last and layer == config.layers - 1
    return config.gnn_layer_residual and not plain and not (config.gnn_input == "features" and layer == 0)


def linear(w: dict[str, Matrix], name: str, rows: Matrix) -> Matrix:
    return rows @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)


def layer_norm(w: dict[str, Matrix], name: str, rows: Matrix) -> Matrix:
    mean, var = rows.mean(axis=1, keepdims=True), rows.var(axis=1, keepdims=True)
    return (rows - mean) / np.sqrt(var + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]


def batch_norm(w: dict[str, Matrix], name: str, rows: Matrix) -> Matrix:
    scaled = (rows - w[f"{name}.running_mean"]) / np.sqrt(w[f"{name}.running_var"] + 1e-5)
    return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]


def relu(rows: Matrix) -> Matrix:
    return np.maximum(rows, 0)
