"""The request-time model: weights as plain arrays, batch norms folded, numpy on a CPU and torch on CUDA.

Only row-wise parts live here. What crosses rows is in `sums` (attention) and `extension` (propagation). Never imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgformer.arrays.operations import Array, Indices, ops_for
from sgformer.config import ModelConfig
from sgformer.errors import UnknownNodeError
from sgformer.features import FeatureRows, MixedRows, SparseRows, folded, transformed
from sgformer.states import NodeStates
from sgformer.sums import AttentionSums
from sgformer.weights import check_weights, layer_has_weight, layer_is_plain

NORM_EPSILON = 1e-5
"""Of layer norm and batch norm alike: torch's default, which every published variant uses."""
ROW_EPSILON = 1e-6
"""PyG replaces exact zeros of queries and keys by this before it divides a row by its length."""


@dataclass(frozen=True)
class Affine:
    weight: Array | None
    """(in, out); None is the identity."""
    bias: Array | None
    """None only where there is a weight and no features are read."""

    def __call__(self, rows: Array) -> Array:
        if self.weight is None:
            return rows + self.bias
        if isinstance(rows, SparseRows):
            return rows.times(self.weight) + self.bias
        ops = ops_for(rows)
        return ops.product(rows, self.weight) if self.bias is None else ops.affine(rows, self.weight, self.bias)


@dataclass(frozen=True)
class LayerNorm:
    weight: Array
    bias: Array

    def __call__(self, rows: Array) -> Array:
        return ops_for(rows).layer_norm(rows, self.weight, self.bias, NORM_EPSILON)


@dataclass(frozen=True)
class GraphLayer:
    """One GCN layer after its propagation: everything of it that is row-wise."""

    affine: Affine
    initial_weight: Array | None
    activation: bool
    residual: bool

    @property
    def reads_initial(self) -> bool:
        return self.residual or self.initial_weight is not None

    def __call__(self, aggregate: Array, initial: Array | None) -> Array:
        """`initial` is the GCN's input row; it may be None where `reads_initial` is false."""
        ops = ops_for(aggregate)
        out = self.affine(aggregate)
        if self.initial_weight is not None:
            out += ops.product(initial, self.initial_weight)
        if self.activation:
            out = ops.relu(out)
        if self.residual:
            out += initial
        return out


@dataclass(frozen=True)
class Answers:
    """Embeddings and logits, one row per node asked for, in the order asked."""

    embeddings: Array
    logits: Array


class InferenceModel:
    """A trained model in evaluation mode. `weights` are those of `SGFormer.weights()`, by name.

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
        """`place` puts every finished array where the model shall run, e.g. onto a GPU (see `torch_arrays.placed_on`)."""
        check_weights(config, weights)
        self.config = config
        self.dtype = np.dtype(dtype)
        # Folding happens in float64: what it rounds is then less than the one rounding to `dtype`.
        self._weights = {name: np.array(array, dtype=np.float64) for name, array in weights.items()}
        self._place = place
        self._input = self._feature_map(self._weights["input.weight"].T, self._weights["input.bias"])
        self._graph_input = None if config.gnn_input == "shared" else self._feature_map(*self._graph_input_parts())
        self._input_norm = self._layer_norm("input_norm", config.input_layer_norm)
        names = ("query", "key", "value") if config.value_map else ("query", "key")
        self._projections = {name: self._projection(name) for name in names}
        self._value_map = self._value_map_by_head() if config.value_map else None
        self._attention_norm = self._layer_norm("attention_norm", config.attention_layer_norm)
        self.graph_layers = tuple(self._graph_layer(index) for index in range(config.layers))
        self._output = self._affine(self._weights["output.weight"].T, self._weights["output.bias"])
        self.like: Array = self._output.bias
        """An array of this model's type, in its place: what `ops_for` and `AttentionSums.to` go by."""
        self._feature_mean = self._weights.get("feature_mean")
        self._feature_scale = self._weights.get("feature_scale")
        del self._weights

    def inputs(self, features: FeatureRows | MixedRows) -> tuple[Array, Array]:
        """From raw feature rows to (Z0, the GCN's input), both (n, hidden)."""
        if isinstance(features, MixedRows):
            pairs = zip(self.inputs(features.dense), self.inputs(features.sparse), strict=True)
            states, graph_states = (features.joined(*pair) for pair in pairs)
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
        """Those of "query", "key" and "value" that are named, of Z0 rows: each (n, heads, hidden).

        Queries and keys are unit rows where the model is row-normalised. Without a value map the values are (n, 1, hidden),
        the rows themselves.
        """
        return [self._projected(states, name) for name in names]

    def _projected(self, states: Array, name: str) -> Array:
        if name not in self._projections:
            return states[:, None, :]
        rows = self._projections[name](states).reshape(len(states), self.config.heads, self.config.hidden)
        unit = self.config.normalization == "row" and name != "value"
        return ops_for(rows).unit(rows, ROW_EPSILON) if unit else rows

    def with_mapped_values(self, sums: AttentionSums) -> AttentionSums:
        """From sums over Z0 rows to sums over their values. These are affine in Z0, so K^T V = (K^T Z0) Wv + (K^T 1) bv: the
        value map costs d^3 here instead of N d^2.
        """
        if self._value_map is None:
            return sums
        weight, bias = self._value_map  # (H, d, d), (H, 1, d)
        return replace(sums, key_value=sums.key_value @ weight + sums.key[:, :, None] * bias)

    def answer(self, states: Array, attended: Array, graph_states: Array) -> Answers:
        """The two branches together: Z0 rows, their attention output (which is overwritten), and the GCN's output."""
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
        """Answers for nodes of the graph: O(rows x hidden^2), whatever N is.

        Raises:
            UnknownNodeError: an id that is not an integer from 0 to N - 1.
        """
        nodes = checked_ids(nodes, states.num_nodes)
        return self.answer_from(sums, self.rows(states.inputs, nodes), self.rows(states.layers[-1], nodes))

    def answer_from(self, sums: AttentionSums, inputs: Array, graph_states: Array) -> Answers:
        """Answers for rows that are in the sums, from their Z0 and the GCN's output."""
        query, value = self.project(inputs, "query", "value")
        return self.answer(inputs, sums.attend(query, value), graph_states)

    def rows(self, source: Array, nodes: Indices) -> Array:
        """Rows of a per-node array, in this model's type and place."""
        ops = ops_for(self.like)
        return ops.cast(ops.take(source, nodes), like=self.like)

    def scalars(self, values: NDArray[Any]) -> Array:
        """One number per row, as a column in this model's type and place."""
        return ops_for(self.like).cast(values, like=self.like)[:, None]

    def _finish(self, array: NDArray[Any]) -> Array:
        return self._place(np.ascontiguousarray(array, dtype=self.dtype))

    def _affine(self, weight: NDArray[Any] | None, bias: NDArray[Any] | None) -> Affine:
        return Affine(*(None if part is None else self._finish(part) for part in (weight, bias)))

    def _layer_norm(self, name: str, present: bool) -> LayerNorm | None:
        if not present:
            return None
        return LayerNorm(self._finish(self._weights[f"{name}.weight"]), self._finish(self._weights[f"{name}.bias"]))

    def _batch_norm(self, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """Evaluation-mode batch norm as x * scale + shift; the identity where the model has none."""
        weights, size = self._weights, self.config.hidden
        if f"{name}.weight" not in weights:
            return np.ones(size), np.zeros(size)
        scale = weights[f"{name}.weight"] / np.sqrt(weights[f"{name}.running_var"] + NORM_EPSILON)
        return scale, weights[f"{name}.bias"] - weights[f"{name}.running_mean"] * scale

    def _graph_input_parts(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Weight and bias of the GCN's own map of the features."""
        weight = self._weights["graph_input.weight"].T
        if self.config.gnn_input == "own":
            scale, shift = self._batch_norm("graph_input_norm")
            return weight * scale, self._weights["graph_input.bias"] * scale + shift
        # The first layer's batch norm scales P X W + b: its scale goes into W here, the rest into the layer's bias.
        scale, _ = self._batch_norm("graph_layers.0.norm")
        return weight * scale, np.zeros(self.config.hidden)

    def _feature_map(self, weight: NDArray[Any], bias: NDArray[Any]) -> Affine:
        if self.config.feature_transform == "standard":
            sparse = folded(weight, bias, self._weights["feature_mean"], self._weights["feature_scale"])
            return _StandardisedAffine(self._finish(weight), self._finish(bias), self._affine(*sparse))
        return self._affine(weight, bias)

    def _value_map_by_head(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        config = self.config
        weight = self._weights["value.weight"].reshape(config.heads, config.hidden, config.hidden).swapaxes(1, 2)
        bias = self._weights.get("value.bias", np.zeros(config.heads * config.hidden))
        return weight, bias.reshape(config.heads, 1, config.hidden)

    def _projection(self, name: str) -> Affine:
        return self._affine(self._weights[f"{name}.weight"].T, self._weights.get(f"{name}.bias"))

    def _graph_layer(self, index: int) -> GraphLayer:
        config, name = self.config, f"graph_layers.{index}"
        scale, shift = self._batch_norm(f"{name}.norm")
        bias = self._weights.get(f"{name}.bias", np.zeros(config.hidden)) * scale + shift
        plain = layer_is_plain(config, index)
        weight = initial = None
        if layer_has_weight(config, index):
            both = self._weights[f"{name}.weight"].T * scale  # (d or 2d, d)
            weight, initial = both[: config.hidden], both[config.hidden :] if config.gnn_init else None
        elif not config.gnn_weight and config.gnn_batch_norm and not plain:
            weight = np.diag(scale)
        return GraphLayer(
            self._affine(weight, bias),
            None if initial is None else self._finish(initial),
            activation=config.gnn_activation and not plain,
            residual=config.gnn_residual and not plain,
        )


def checked_ids(nodes: Any, num_nodes: int) -> Indices:
    ids = np.asarray(nodes)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise UnknownNodeError(f"nodes are {ids.dtype} with {ids.ndim} dimension(s), expected a list of integer ids")
    if ids.size and (np.minimum.reduce(ids) < 0 or np.maximum.reduce(ids) >= num_nodes):
        bad = ids[(ids < 0) | (ids >= num_nodes)][0]
        raise UnknownNodeError(f"node {bad} is not in the graph, expected ids from 0 to {num_nodes - 1}", int(bad))
    return ids.astype(np.int64, copy=False)


@dataclass(frozen=True)
class _StandardisedAffine(Affine):
    """Dense rows arrive standardised; sparse ones arrive raw and meet weights that do it."""

    for_sparse: Affine

    def __call__(self, rows: Array) -> Array:
        return self.for_sparse(rows) if isinstance(rows, SparseRows) else super().__call__(rows)
