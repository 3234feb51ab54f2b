"""The row-wise layers of the request-time model, and how they are made from the weights of a trained model.

Batch norms and the standardisation of features are folded into the maps beside them, so a request does not compute them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgformer.arrays.operations import Array, ops_for
from sgformer.config import ModelConfig
from sgformer.features import SparseRows, folded
from sgformer.weights import layer_has_weight, layer_is_plain, layer_reads

NORM_EPSILON = 1e-5
"""The epsilon of layer norm and batch norm: torch's default, which every published variant uses."""
ROW_EPSILON = 1e-6
"""Replaces exact zeros of queries and keys before a row is divided by its length, as in PyG."""


@dataclass(frozen=True)
class Affine:
    weight: Array | None
    """(in, out); None is the identity."""
    bias: Array | None
    """None is zero. The identity, and maps of features, always have a bias."""
    for_sparse: Affine | None = None
    """The map for sparse rows if it differs: it also standardises them. Dense rows are standardised before the map."""

    def __call__(self, rows: Array) -> Array:
        if self.weight is None:
            return rows + self.bias
        if isinstance(rows, SparseRows):
            affine = self.for_sparse or self
            return rows.times(affine.weight) + affine.bias
        ops = ops_for(rows)
        return ops.product(rows, self.weight) if self.bias is None else ops.affine(rows, self.weight, self.bias)


@dataclass(frozen=True)
class LayerNorm:
    weight: Array
    bias: Array

    def __call__(self, rows: Array) -> Array:
        return ops_for(rows).layer_norm(rows, self.weight, self.bias, NORM_EPSILON)

    def scaled(self, part: Array, rows: Array) -> Array:
        """The contribution of `part`, a summand of `rows`, to the normalised `rows`. numpy only.

        With the deviation of the whole rows the norm is linear: the contributions of all summands and the bias add up to the
        normalised rows.
        """
        deviation = np.sqrt(rows.var(axis=1, keepdims=True) + NORM_EPSILON)
        return (part - part.mean(axis=1, keepdims=True)) / deviation * self.weight


@dataclass(frozen=True)
class GraphLayer:
    """The row-wise part of a GCN layer: all that comes after its propagation."""

    affine: Affine
    initial_weight: Array | None
    norm: Callable[[Array], Array] | None
    """A layer norm; a batch norm is part of the affine map."""
    activation: bool
    residual: bool
    reads: int | None
    """The layer whose states are the argument `own` (`weights.layer_reads`)."""

    def __call__(self, aggregate: Array, own: Array | None) -> Array:
        """`own` holds the states of the same nodes after the layer `reads`; it may be None if `reads` is None."""
        ops = ops_for(aggregate)
        out = self.affine(aggregate)
        if self.initial_weight is not None:
            out += ops.product(own, self.initial_weight)
        if self.norm is not None:
            out = self.norm(out)
        if self.activation:
            out = ops.relu(out)
        if self.residual:
            out += own
        return out


class LayerBuilder:
    """Makes layers from weights by name. It folds in float64, then rounds once to `dtype`."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, NDArray[Any]],
        dtype: np.dtype[Any],
        place: Callable[[NDArray[Any]], Array],
    ) -> None:
        self._config, self._dtype, self._place = config, dtype, place
        self._weights = {name: np.array(array, dtype=np.float64) for name, array in weights.items()}

    def linear(self, name: str) -> Affine:
        return self._affine(self._weights[f"{name}.weight"].T, self._weights.get(f"{name}.bias"))

    def layer_norm(self, name: str) -> LayerNorm | None:
        """None if the model has no norm of this name."""
        if f"{name}.weight" not in self._weights:
            return None
        return LayerNorm(*(self._finish(self._weights[f"{name}.{part}"]) for part in ("weight", "bias")))

    def feature_statistics(self) -> tuple[NDArray[np.float64] | None, NDArray[np.float64] | None]:
        """Mean and scale of `standard` features, in float64; None for other transforms."""
        return self._weights.get("feature_mean"), self._weights.get("feature_scale")

    def input_map(self) -> Affine:
        return self._feature_map(self._weights["input.weight"].T, self._weights["input.bias"])

    def graph_input_map(self) -> Affine | None:
        """The GCN's own map of the features; None if the GCN reads Z0."""
        if self._config.gnn_input == "shared":
            return None
        weight = self._weights["graph_input.weight"].T
        if self._config.gnn_input == "own":
            scale, shift = self._batch_norm("graph_input_norm")
            return self._feature_map(weight * scale, self._weights["graph_input.bias"] * scale + shift)
        # The first layer's batch norm scales P X W + b: its scale goes into W here, the rest into the layer's bias.
        scale, _ = self._batch_norm("graph_layers.0.norm")
        return self._feature_map(weight * scale, np.zeros(self._config.hidden))

    def graph_layer(self, index: int) -> GraphLayer:
        config, name, plain = self._config, f"graph_layers.{index}", layer_is_plain(self._config, index)
        scale, shift = self._batch_norm(f"{name}.norm")
        bias = self._weights.get(f"{name}.bias", np.zeros(config.hidden)) * scale + shift
        weight = initial = None
        if layer_has_weight(config, index):
            both = self._weights[f"{name}.weight"].T * scale  # (d or 2d, d)
            weight, initial = both[: config.hidden], both[config.hidden :] if config.gnn_init else None
        elif not config.gnn_weight and config.gnn_batch_norm and not plain:
            weight = np.diag(scale)
        reads = layer_reads(config, index)
        residual = reads is not None and not plain and (config.gnn_residual or config.gnn_layer_residual)
        return GraphLayer(
            self._affine(weight, bias),
            None if initial is None else self._finish(initial),
            self.graph_norm(f"{name}.norm"),
            activation=config.gnn_activation and not plain,
            residual=residual,
            reads=reads,
        )

    def graph_norm(self, name: str) -> Callable[[Array], Array] | None:
        """A layer norm of the GCN; None if the model has none of this name."""
        return self.layer_norm(name) if self._config.gnn_layer_norm else None

    def value_map_by_head(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Weight (H, d, d) and bias (H, 1, d) of the value map, in float64 as the sums that it is applied to."""
        heads, hidden = self._config.heads, self._config.hidden
        weight = self._weights["value.weight"].reshape(heads, hidden, hidden).swapaxes(1, 2)
        return weight, self._weights.get("value.bias", np.zeros(heads * hidden)).reshape(heads, 1, hidden)

    def _feature_map(self, weight: NDArray[Any], bias: NDArray[Any]) -> Affine:
        sparse = None
        if self._config.feature_transform == "standard":
            statistics = self._weights["feature_mean"], self._weights["feature_scale"]
            sparse = self._affine(*folded(weight, bias, *statistics))
        return Affine(self._finish(weight), self._finish(bias), sparse)

    def _batch_norm(self, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """Evaluation-mode batch norm as x * scale + shift; the identity if the model has none of this name."""
        weights, size = self._weights, self._config.hidden
        if f"{name}.running_var" not in weights:
            return np.ones(size), np.zeros(size)
        scale = weights[f"{name}.weight"] / np.sqrt(weights[f"{name}.running_var"] + NORM_EPSILON)
        return scale, weights[f"{name}.bias"] - weights[f"{name}.running_mean"] * scale

    def _affine(self, weight: NDArray[Any] | None, bias: NDArray[Any] | None) -> Affine:
        return Affine(*(None if array is None else self._finish(array) for array in (weight, bias)))

    def _finish(self, array: NDArray[Any]) -> Array:
        return self._place(np.ascontiguousarray(array, dtype=self._dtype))
