"""Reference answers: the last step of a forward, computed by the trainable module from stored states and sums.

`InferenceModel` and `AttentionSums` answer requests. Here the layers of `SGFormer` compute the same in float64, and the
attention from the sums is implemented a second time. Publishing compares both, so an error in either is found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgformer.arrays.operations import Indices
from sgformer.config import ModelConfig
from sgformer.full_graph.forward import Summary
from sgformer.request_time.inference import Answers
from sgformer.request_time.layers import ROW_EPSILON
from sgformer.sums import AttentionSums
from sgformer.torch_model.attention import unit_rows
from sgformer.torch_model.model import SGFormer, apply_linear


def reference_answers(config: ModelConfig, weights: Mapping[str, NDArray[Any]], summary: Summary, nodes: Indices) -> Answers:
    """The answers of a full-graph forward for some nodes of its graph, in float32."""
    model = SGFormer(config).double().eval()
    model.load_weights(weights)
    inputs, graph_states = (
        torch.from_numpy(np.asarray(array[nodes], dtype=np.float64))
        for array in (summary.states.inputs, summary.states.layers[-1])
    )
    with torch.inference_mode():
        attended = model.finish_attention(inputs, _attend(model, inputs, summary.sums))
        embeddings = model.combine(attended, graph_states)
        logits = apply_linear(model.output, embeddings)
    return Answers(embeddings.float().numpy(), logits.float().numpy())


def _attend(model: SGFormer, rows: Tensor, sums: AttentionSums) -> Tensor:
    """[V + Q~ (K~^T V) / N] / [1 + Q~ (K~^T 1) / N], averaged over the heads."""
    query = model.by_head(apply_linear(model.query, rows))  # (H, n, d)
    value = rows[None] if model.value is None else model.by_head(apply_linear(model.value, rows))
    if model.config.normalization == "row":
        query = unit_rows(query, ROW_EPSILON) / float(sums.count)
    else:
        norms = float(sums.query_square) * float(sums.key_square)
        query = query / (float(sums.count) * norms**0.5) if norms > 0 else query * 0
    numerator = value + query @ torch.from_numpy(sums.key_value)
    denominator = 1 + query @ torch.from_numpy(sums.key)[:, :, None]
    return (numerator / denominator).mean(dim=0)
