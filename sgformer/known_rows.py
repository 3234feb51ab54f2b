"""Answers for rows of the graph, with everything that does not depend on the row done beforehand.

With one norm for the whole matrix (`frobenius`) the query is affine in Z0, and so are Q S, Q s and V: the sums can be folded
into the projections, and a known row's attention is two matrix products and a division. Row-normalised queries are not
affine; for those the sums are attended to as they are. numpy only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sgformer.arrays import NUMPY, Indices
from sgformer.inference import Answers, InferenceModel, checked_ids
from sgformer.states import NodeStates
from sgformer.sums import AttentionSums


class KnownRows:
    """One model, one graph, its sums: asked again and again for some of its rows."""

    def __init__(
        self, model: InferenceModel, weights: Mapping[str, NDArray[Any]], states: NodeStates, sums: AttentionSums
    ) -> None:
        """`weights` are those that the model was made of."""
        self._model, self._states, self._sums = model, states, sums
        self._folded: Folded | None = None
        if model.config.normalization == "frobenius":
            # In float64: what folding rounds is then less than the one rounding to the model's type.
            self._folded = _folded(InferenceModel(model.config, weights, np.float64), sums, model.dtype)

    def answers(self, nodes: Indices) -> Answers:
        """As `InferenceModel.known`, to the last few bits of float32. Raises UnknownNodeError."""
        model, states = self._model, self._states
        if self._folded is None:
            return model.known(states, self._sums, nodes)
        nodes = checked_ids(nodes, states.num_nodes)
        inputs, graph_states = model.rows(states.inputs, nodes), model.rows(states.layers[-1], nodes)
        return model.answer(inputs, _attended(inputs, self._folded), graph_states)


class Folded(NamedTuple):
    """What attention of a row is made of, as affine maps of it, for all heads side by side."""

    mixed_weight: NDArray[Any]
    """(d, H d)"""
    mixed_bias: NDArray[Any]
    """Of V + c Q S."""
    total_weight: NDArray[Any]
    """(d, H)"""
    total_bias: NDArray[Any]
    """Of 1 + c Q s."""


def _folded(model: InferenceModel, sums: AttentionSums, dtype: np.dtype[Any]) -> Folded:
    """Found by asking: an affine map is known from its value at zero and at the unit rows."""
    hidden, heads = model.config.hidden, model.config.heads
    rows = np.concatenate([np.zeros((1, hidden)), np.eye(hidden)])
    query, value = model.project(rows, "query", "value")
    mixed, total = sums.parts(query, value)  # (d + 1, H, d), (d + 1, H, 1)
    return Folded(*_affine(mixed.reshape(-1, heads * hidden), dtype), *_affine(total.reshape(-1, heads), dtype))


def _affine(values: NDArray[Any], dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Weight and bias, from the values at zero and at the unit rows."""
    return (values[1:] - values[0]).astype(dtype), values[0].astype(dtype)


def _attended(inputs: NDArray[Any], folded: Folded) -> NDArray[Any]:
    mixed = NUMPY.affine(inputs, folded.mixed_weight, folded.mixed_bias)
    total = NUMPY.affine(inputs, folded.total_weight, folded.total_bias)
    heads = total.shape[1]
    if heads == 1:
        mixed /= total
        return np.asarray(mixed)
    by_head = mixed.reshape(len(inputs), heads, -1) / total[:, :, None]
    return np.asarray(by_head.mean(axis=1))
