"""The request-time model: weights as plain arrays, on numpy, on torch (CUDA), or recorded as an ONNX graph.

It computes what is row-wise. What crosses rows is in `sums` (attention) and `extension` (propagation). Never imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgformer.arrays.operations import Array, Indices, ops_for
from sgformer.config import ModelConfig, Task
from sgformer.errors import UnknownNodeError
from sgformer.features import FeatureRows, MixedRows, SparseRows, transformed
from sgformer.request_time.layers import ROW_EPSILON, LayerBuilder
from sgformer.states import NodeStates
from sgformer.sums import AttentionSums
from sgformer.weights import check_weights


@dataclass(frozen=True)
class Answers:
    """Embeddings and logits, a row for each node of the request, in its order."""

    embeddings: Array
    logits: Array


class InferenceModel:
    """A trained model in evaluation mode.

    Args:
        weights: by name, as `SGFormer.weights()` returns them.
        place: puts each finished array where the model runs, e.g. on a GPU (`torch_operations.placed_on`).

    Raises:
        WeightsError: a tensor is missing, unknown or of the wrong shape.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, NDArray[Any]],
        dtype: Any = np.float32,
        place: Callable[[NDArray[Any]], Array] = lambda array: array,
    ) -> None:
        check_weights(config, weights)
        self.config = config
        self.dtype = np.dtype(dtype)
        build = LayerBuilder(config, weights, self.dtype, place)
        self._input, self._input_norm = build.input_map(), build.layer_norm("input_norm")
        self._graph_input = build.graph_input_map()
        names = ("query", "key", "value") if config.value_map else ("query", "key")
        self._projections = {name: build.linear(name) for name in names}
        self._value_map = build.value_map_by_head() if config.value_map else None
        self._attention_norm = build.layer_norm("attention_norm")
        self.graph_layers = tuple(build.graph_layer(index) for index in range(config.layers))
        self._output = build.linear("output")
        self.like: Array = self._output.bias
        """An array of this model's type, in its place: for `ops_for` and `AttentionSums.to`."""
        self._feature_mean, self._feature_scale = build.feature_statistics()

    def inputs(self, features: FeatureRows | MixedRows) -> tuple[Array, Array]:
        """Maps raw feature rows to (Z0, the GCN's input), both (n, hidden)."""
        if isinstance(features, MixedRows):
            pairs = zip(self.inputs(features.dense), self.inputs(features.sparse), strict=True)
            states, graph_states = (features.interleave(*pair) for pair in pairs)
            return states, graph_states
        ops, config = ops_for(self.like), self.config
        rows: Any = transformed(features, config.feature_transform, self._feature_mean, self._feature_scale)
        if not isinstance(rows, SparseRows):
            rows = ops.cast(rows, like=self.like)
        states = self._input(rows)
        if self._input_norm is not None:
            states = self._input_norm(states)
        states = ops.relu(states)
        if self._graph_input is None:
            return states, states
        graph_states = self._graph_input(rows)
        return states, ops.relu(graph_states) if config.gnn_input == "own" else graph_states

    def project(self, states: Array, *names: str) -> list[Array]:
        """Computes those of "query", "key" and "value" that are named, from Z0 rows: each (n, heads, hidden).

        With `row` normalisation queries and keys are unit rows. Without a value map the values are Z0 itself (n, 1, hidden).
        """
        return [self._project(states, name) for name in names]

    def _project(self, states: Array, name: str) -> Array:
        if name not in self._projections:
            return states[:, None, :]
        rows = self._projections[name](states).reshape(-1, self.config.heads, self.config.hidden)
        unit = self.config.normalization == "row" and name != "value"
        return ops_for(rows).unit(rows, ROW_EPSILON) if unit else rows

    def with_mapped_values(self, sums: AttentionSums) -> AttentionSums:
        """Turns sums over Z0 rows into sums over their values.

        Values are affine in Z0, so K^T V = (K^T Z0) Wv + (K^T 1) bv: the value map costs d^3 here instead of N d^2.
        """
        if self._value_map is None:
            return sums
        weight, bias = self._value_map
        return replace(sums, key_value=sums.key_value @ weight + sums.key[:, :, None] * bias)

    def answer(self, states: Array, attended: Array, graph_states: Array) -> Answers:
        """Combines the two branches: Z0 rows with their attention output, which is overwritten, and the GCN's output."""
        config, ops = self.config, ops_for(states)
        if config.attention_residual is not None:
            attended = ops.mix(attended, states, 1 - config.attention_residual)
        if self._attention_norm is not None:
            attended = self._attention_norm(attended)
        if config.attention_activation:
            attended = ops.relu(attended)
        if config.combine == "cat":
            embeddings = ops.concat([attended, graph_states], axis=1)
        else:
            embeddings = ops.mix(attended, graph_states, config.alpha)
        return Answers(embeddings, self._output(embeddings))

    def known(self, states: NodeStates, sums: AttentionSums, nodes: Indices) -> Answers:
        """Answers for nodes of the graph: O(rows x hidden^2), independent of the size of the graph.

        Raises:
            UnknownNodeError: an id that is not an integer from 0 to N - 1.
        """
        nodes = checked_ids(nodes, states.num_nodes)
        return self.answer_from(sums, self.rows(states.inputs, nodes), self.rows(states.layers[-1], nodes))

    def answer_from(self, sums: AttentionSums, inputs: Array, graph_states: Array) -> Answers:
        """Answers for rows that the sums include, from their Z0 and the GCN's output."""
        query, value = self.project(inputs, "query", "value")
        return self.answer(inputs, sums.attend(query, value), graph_states)

    def rows(self, source: Array, nodes: Indices) -> Array:
        """Rows of a per-node array, in this model's type and place."""
        ops = ops_for(self.like)
        return ops.cast(ops.take(source, nodes), like=self.like)

    def scalars(self, values: NDArray[Any]) -> Array:
        """A number per row, as a column in this model's type and place."""
        return ops_for(self.like).cast(values, like=self.like)[:, None]


def checked_ids(nodes: Any, num_nodes: int) -> Indices:
    ids = np.asarray(nodes)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise UnknownNodeError(f"nodes are {ids.dtype} with {ids.ndim} dimension(s), expected a list of integer ids")
    if ids.size and (np.minimum.reduce(ids) < 0 or np.maximum.reduce(ids) >= num_nodes):
        bad = ids[(ids < 0) | (ids >= num_nodes)][0]
        raise UnknownNodeError(f"node {bad} is not in the graph, expected ids from 0 to {num_nodes - 1}", int(bad))
    return ids.astype(np.int64, copy=False)


def probabilities(logits: NDArray[np.floating[Any]], task: Task) -> NDArray[np.floating[Any]]:
    """The probabilities of classes (multiclass: rows sum to 1) or of labels (multilabel), from logits (n, C).

    Raises ValueError for regression, which has no probabilities.
    """
    if task == "regression":
        raise ValueError("a regression model predicts values, not probabilities")
    if task == "multilabel":
        # The argument of exp is never positive, so nothing overflows.
        small = np.exp(-np.abs(logits))
        shares = np.where(logits >= 0, 1, small) / (1 + small)
    else:
        # The maximum of each row, column by column: rows are short, and numpy has a cost per row.
        shares = np.exp(logits - np.maximum.reduce(logits.T.copy())[:, None])
        # A dot product per row is faster than a reduction, and its bits depend on that row only.
        shares /= np.vecdot(shares, np.ones(shares.shape[1], dtype=shares.dtype))[:, None]
    return np.asarray(shares, dtype=logits.dtype)
