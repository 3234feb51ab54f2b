"""The last step of the model once more, in torch, for the probes: from states and sums to embeddings and logits.

Written apart from what serves (`InferenceModel`, `request_head`), so that a mistake in one of them shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from sgformer import Answers, AttentionSums, ModelConfig, Summary
from sgformer.request_time.inference import NORM_EPSILON, ROW_EPSILON


def answers_of(
    config: ModelConfig, weights: Mapping[str, NDArray[Any]], summary: Summary, rows: NDArray[np.int64]
) -> Answers:
    """Of rows of a graph, from a full forward over all of it."""
    inputs, graph_states = (_tensor(array[rows]) for array in (summary.states.inputs, summary.states.layers[-1]))
    tensors = {name: _tensor(array) for name, array in weights.items()}
    attended = _attended(config, tensors, summary.sums, inputs)
    if config.attention_residual is not None:
        attended = config.attention_residual * attended + (1 - config.attention_residual) * inputs
    if config.attention_layer_norm:
        norm = tensors["attention_norm.weight"], tensors["attention_norm.bias"]
        attended = F.layer_norm(attended, (config.hidden,), *norm, eps=NORM_EPSILON)
    if config.attention_activation:
        attended = F.relu(attended)
    if config.combine == "cat":
        embeddings = torch.cat([attended, graph_states], dim=1)
    else:
        embeddings = (1 - config.alpha) * attended + config.alpha * graph_states
    logits = F.linear(embeddings, tensors["output.weight"], tensors["output.bias"])
    return Answers(embeddings.numpy(), logits.numpy())


def _attended(config: ModelConfig, weights: Mapping[str, Tensor], sums: AttentionSums, rows: Tensor) -> Tensor:
    def mapped(name: str) -> Tensor:
        bias = weights[f"{name}.bias"] if config.qkv_bias else None
        return F.linear(rows, weights[f"{name}.weight"], bias).reshape(-1, config.heads, config.hidden)

    query = mapped("query")
    if config.normalization == "row":
        query = F.normalize(torch.where(query == 0, ROW_EPSILON, query), dim=2, eps=0.0)
    value = (mapped("value") if config.value_map else rows[:, None, :]).double()
    norms = float(sums.query_square) * float(sums.key_square) if config.normalization == "frobenius" else 1.0
    query = query.double() * (1 / (float(sums.count) * norms**0.5) if norms > 0 else 0.0)
    mixed = torch.einsum("nhd,hde->nhe", query, torch.from_numpy(sums.key_value))
    total = torch.einsum("nhd,hd->nh", query, torch.from_numpy(sums.key))[:, :, None]
    return ((value + mixed) / (1 + total)).mean(1).float()


def _tensor(array: Any) -> Tensor:
    return torch.from_numpy(np.asarray(array, dtype=np.float32))
