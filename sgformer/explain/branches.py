"""The logits as a sum of four parts: own value, attention to others, graph branch, bias (docs/mathematics.md section 6)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sgformer.arrays.operations import Array, Indices
from sgformer.config import Task
from sgformer.request_time.inference import InferenceModel
from sgformer.states import NodeStates
from sgformer.sums import AttentionSums

Matrix = NDArray[np.float64]
CHUNK_ROWS = 4096


class Branches(NamedTuple):
    """Each part is (n, outputs), in float64. The sum of the parts is the logits."""

    attention_self: Matrix
    """From the node itself: its value in the attention, and the residual."""
    attention_others: Matrix
    """From all other nodes, by attention."""
    graph: Matrix
    """From the GCN."""
    bias: Matrix
    """From the biases of the attention's norm and of the output: the same for all nodes unless the attention has a ReLU."""

    @property
    def logits(self) -> Matrix:
        return self.attention_self + self.attention_others + self.graph + self.bias


def split_logits(model: InferenceModel, sums: AttentionSums, inputs: Array, graph_states: Array) -> Branches:
    """Splits the logits of rows that the sums include, from their Z0 and the output of the GCN.

    The norm of the attention branch divides by a deviation, and its ReLU sets entries to zero. Both are taken from the whole
    row and applied to every part, which keeps the sum exact.
    """
    config = model.config
    rows, graph = (np.asarray(part, dtype=np.float64) for part in (inputs, graph_states))
    own, others = sums.attend_parts(*model.project(rows, "query", "key", "value"))
    if config.attention_residual is not None:
        share = config.attention_residual
        own, others = share * own + (1 - share) * rows, share * others
    bias = np.zeros_like(rows)
    if (norm := model.attention_norm) is not None:
        whole = own + others
        own, others, bias = norm.scaled(own, whole), norm.scaled(others, whole), bias + norm.bias
    if config.attention_activation:
        is_positive = own + others + bias > 0
        own, others, bias = own * is_positive, others * is_positive, bias * is_positive
    weight, output_bias = (np.asarray(part, dtype=np.float64) for part in (model.output.weight, model.output.bias))
    if config.combine == "cat":
        from_attention, from_graph = weight[: config.hidden], weight[config.hidden :]
    else:
        from_attention, from_graph = (1 - config.alpha) * weight, config.alpha * weight
    return Branches(own @ from_attention, others @ from_attention, graph @ from_graph, bias @ from_attention + output_bias)


def split_known(model: InferenceModel, states: NodeStates, sums: AttentionSums, rows: Indices) -> Branches:
    """`split_logits` for nodes of the graph."""
    return split_logits(model, sums, model.rows(states.inputs, rows), model.rows(states.layers[-1], rows))


def branch_shares(model: InferenceModel, states: NodeStates, sums: AttentionSums, nodes: Indices) -> dict[str, float]:
    """The mean share of every part in the answers for these nodes; the shares add up to 1.

    The share of a part in an answer is the size of its contribution, divided by the sum of the sizes of all four. The
    contribution is what the part adds to the logit of the predicted class, less what it adds to all classes on average,
    which does not affect the decision. In multi-label and regression models the size is summed over all outputs.
    """
    totals = np.zeros(len(Branches._fields))
    for start in range(0, len(nodes), CHUNK_ROWS):
        parts = split_known(model, states, sums, nodes[start : start + CHUNK_ROWS])
        sizes = _sizes(parts, model.config.task)
        whole = sizes.sum(axis=0)
        totals += (sizes / np.where(whole > 0, whole, 1)).sum(axis=1)
    shares = totals / max(float(totals.sum()), np.finfo(np.float64).tiny)
    return dict(zip(Branches._fields, shares.tolist(), strict=True))


def _sizes(branches: Branches, task: Task) -> Matrix:
    """The sizes of the contributions, (parts, n)."""
    if task != "multiclass" or branches.bias.shape[1] == 1:
        return np.stack([np.abs(part).sum(axis=1) for part in branches])
    rows, labels = np.arange(len(branches.bias)), branches.logits.argmax(axis=1)
    return np.stack([np.abs(part[rows, labels] - part.mean(axis=1)) for part in branches])
