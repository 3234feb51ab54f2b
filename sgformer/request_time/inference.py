"""The request-time model: weights as plain arrays, on numpy, on torch (CUDA), or recorded as an ONNX graph.

It computes everything that is row-wise. Code that combines rows is in `sums` (attention) and `extension` (propagation). This
module never imports torch.
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
from sgformer.features import FeatureRows, MappedRows, MixedRows, SparseRows, transformed
from sgformer.request_time.folded_attention import fold_attention
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
        self._graph_input, self._graph_input_norm = build.graph_input_map(), build.graph_norm("graph_input_norm")
        names = ("query", "key", "value") if config.value_map else ("query", "key")
        self._projections = {name: build.linear(name) for name in names}
        self._value_map = build.value_map_by_head() if config.value_map else None
        self.attention_norm = build.layer_norm("attention_norm")
        self.graph_layers = tuple(build.graph_layer(index) for index in range(config.layers))
        self.output = build.linear("output")
        self.like: Array = self.output.bias
        """An array of the type and on the device of this model: for `ops_for` and `AttentionSums.to`."""
        self._feature_mean, self._feature_scale = build.feature_statistics()

    def inputs(self, features: FeatureRows | MixedRows | MappedRows) -> tuple[Array, Array]:
        """Maps raw feature rows to (Z0, the GCN's input), both (n, hidden)."""
        if isinstance(features, MappedRows):
            return self.rows(features.inputs, features.rows), self.rows(features.initial, features.rows)
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
        if self._graph_input_norm is not None:
            graph_states = self._graph_input_norm(graph_states)
        return states, ops.relu(graph_states) if config.gnn_input == "own" else graph_states

    def project(self, states: Array, *names: str) -> list[Array]:
        """Computes the named ones of "query", "key" and "value" from Z0 rows: each (n, heads, hidden).

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

    def feature_norms(self) -> NDArray[np.float64]:
        """The length of the vector that one unit of each raw feature adds to the inputs of both branches. numpy only."""
        weights: list[Any] = [part.weight for part in (self._input, self._graph_input) if part is not None]
        squares = sum(np.square(weight, dtype=np.float64).sum(axis=1) for weight in weights)
        scale = 1.0 if self._feature_scale is None else self._feature_scale
        return np.asarray(np.sqrt(squares) / scale)

    def answer(self, states: Array, attended: Array, graph_states: Array) -> Answers:
        """Combines the attention branch (from Z0 and `attended`, which is overwritten) and the GCN's output."""
        config, ops = self.config, ops_for(states)
        if config.attention_residual is not None:
            attended = ops.mix(attended, states, 1 - config.attention_residual)
        if self.attention_norm is not None:
            attended = self.attention_norm(attended)
        if config.attention_activation:
            attended = ops.relu(attended)
        if config.combine == "cat":
            embeddings = ops.concat([attended, graph_states], axis=1)
        else:
            embeddings = ops.mix(attended, graph_states, config.alpha)
        return Answers(embeddings, self.output(embeddings))

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

    def attention(self, sums: AttentionSums) -> Callable[[Array], Array]:
        """The attention as a function of Z0 rows that the sums include, for many calls with the same sums. numpy only."""
        if sums.normalization == "frobenius":
            return fold_attention(sums, self._projections["query"], self._projections.get("value"), self.dtype)
        return lambda inputs: sums.attend(*self.project(inputs, "query", "value"))

    def rows(self, source: Array, nodes: Indices) -> Array:
        """Rows of a per-node array, in the type and on the device of this model."""
        ops = ops_for(self.like)
        return ops.cast(ops.take(source, nodes), like=self.like)

    def scalars(self, values: NDArray[Any]) -> Array:
        """One number per row, as a column in the type and on the device of this model."""
        return ops_for(self.like).cast(values, like=self.like)[:, None]


def checked_ids(nodes: Any, num_nodes: int) -> Indices:
    ids = np.asarray(nodes)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise UnknownNodeError(f"nodes are {ids.dtype} with {ids.ndim} dimension(s), expected a list of integer ids")
    if ids.size and (np.minimum.reduce(ids) < 0 or np.maximum.reduce(ids) >= num_nodes):
        unknown = ids[(ids < 0) | (ids >= num_nodes)][0]
        raise UnknownNodeError(f"node {unknown} is not in the graph, expected ids from 0 to {num_nodes - 1}", int(unknown))
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
        # The maximum of each row, taken column by column: rows are short, and numpy has an overhead per row.
        shares = np.exp(logits - np.maximum.reduce(logits.T.copy())[:, None])
        # A dot product per row is faster than a reduction, and its bits depend on that row only.
        shares /= np.vecdot(shares, np.ones(shares.shape[1], dtype=shares.dtype))[:, None]
    return np.asarray(shares, dtype=logits.dtype)
