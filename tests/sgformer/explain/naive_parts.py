"""The oracle of explanations: parts of logits, and logits of changed graphs, by N x N matrices in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from sgformer import Graph
from tests.sgformer import naive
from tests.sgformer.cases import Case, oracle


def naive_parts(case: Case, graph: Graph) -> tuple[np.ndarray, ...]:
    """attention_self, attention_others, graph and bias of every node, written out node by node."""
    config = case.config
    w = {name: np.asarray(value, dtype=np.float64) for name, value in case.weights().items()}
    x = naive.transform(config, w, naive.dense_features(graph))
    z0 = naive.linear(w, "input", x)
    z0 = naive.relu(naive.layer_norm(w, "input_norm", z0) if config.input_layer_norm else z0)
    shape = (len(z0), config.heads, config.hidden)
    query, key = (naive.linear(w, name, z0).reshape(shape) for name in ("query", "key"))
    value = naive.linear(w, "value", z0).reshape(shape) if config.value_map else np.stack([z0] * config.heads, axis=1)
    attention = naive.attention_matrix(config, query, key)
    propagated = naive.graph_branch(config, w, x, z0, naive.propagation_matrix(graph))
    weight = w["output.weight"].T
    from_attention, from_graph = (1 - config.alpha) * weight, config.alpha * weight
    if config.combine == "cat":
        from_attention, from_graph = weight[: config.hidden], weight[config.hidden :]
    parts = []
    for node in range(graph.num_nodes):
        own = np.mean([attention[h, node, node] * value[node, h] for h in range(config.heads)], axis=0)
        others = np.zeros(config.hidden)
        for other in set(range(graph.num_nodes)) - {node}:
            others += np.mean([attention[h, node, other] * value[other, h] for h in range(config.heads)], axis=0)
        own, others, bias = _through_norm(case, w, z0[node], own, others)
        rows = own @ from_attention, others @ from_attention, propagated[node] @ from_graph
        parts.append([*rows, bias @ from_attention + w["output.bias"]])
    return tuple(np.array(part) for part in zip(*parts, strict=True))


def _through_norm(case: Case, w: Any, z0: np.ndarray, own: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, ...]:
    config, bias = case.config, np.zeros_like(z0)
    if (share := config.attention_residual) is not None:
        own, others = share * own + (1 - share) * z0, share * others
    if config.attention_layer_norm:
        deviation, scale = np.sqrt(np.var(own + others) + 1e-5), w["attention_norm.weight"]
        own, others = (scale * (part - np.mean(part)) / deviation for part in (own, others))
        bias = w["attention_norm.bias"]
    is_open = (own + others + bias > 0) | (not config.attention_activation)
    return own * is_open, others * is_open, bias * is_open


def without_edges(graph: Graph, node: int, others: list[int]) -> Graph:
    left, right = graph.adjacency.edge_index()
    gone = ((left == node) & np.isin(right, others)) | ((right == node) & np.isin(left, others))
    return Graph.build(graph.features, np.stack([left, right])[:, ~gone])


def naive_logits(case: Case, graph: Graph, node: int) -> np.ndarray:
    return oracle(case, graph)[1][node]
