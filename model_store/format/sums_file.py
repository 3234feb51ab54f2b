"""`sums.safetensors`: the attention sums, and the same sums over a sample of rows, by which they can be checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.errors import SnapshotError
from model_store.format import npy
from model_store.format.layout import SUMS, Sizes, array_specs, state_file
from model_store.format.tensors import Tensors, read_tensors, write_tensors
from sgformer import AttentionSums, InferenceModel, ModelConfig

SAMPLE_ROWS = 1024
SAMPLE_TOLERANCE = 1e-9
_NAMES = ("key_value", "key", "query_square", "key_square")
Weights = Mapping[str, NDArray[Any]]


def write_sums(folder: Path, config: ModelConfig, sizes: Sizes, weights: Weights, sums: AttentionSums) -> None:
    """The states must be in the folder already: the sample is taken of them as they are stored."""
    sample = _sample(folder, config, sizes, weights)
    write_tensors(folder / SUMS, _named("", sums) | _named("sample.", sample))


def read_sums(folder: Path, config: ModelConfig, sizes: Sizes, weights: Weights) -> AttentionSums:
    """The sums, if they are finite, over N rows, and made by these weights from the states in this folder.

    Raises:
        SnapshotError: which of this does not hold.
    """
    tensors = read_tensors(folder, SUMS)
    _check_shapes(tensors, config)
    if int(tensors["count"]) != sizes.nodes:
        raise SnapshotError(SUMS, f"counts {int(tensors['count'])} rows, expected {sizes.nodes}")
    _check_sample(tensors, _named("sample.", _sample(folder, config, sizes, weights)))
    return AttentionSums(config.normalization, **{name: tensors[name] for name in _NAMES}, count=sizes.nodes)


def _sample(folder: Path, config: ModelConfig, sizes: Sizes, weights: Weights) -> AttentionSums:
    """Over rows that lie evenly in the graph, in float64: the same on every machine, to the last digits."""
    name = state_file("inputs")
    count = min(sizes.nodes, SAMPLE_ROWS)
    rows = npy.read_rows(folder, name, array_specs(config, sizes)[name], np.arange(count) * sizes.nodes // count)
    model = InferenceModel(config, weights, np.float64)
    query, key, value = model.project(rows.astype(np.float64), "query", "key", "value")
    return AttentionSums.of_rows(config.normalization, query, key, value)


def _named(prefix: str, sums: AttentionSums) -> Tensors:
    tensors = {prefix + name: np.asarray(getattr(sums, name), dtype=np.float64) for name in _NAMES}
    return tensors | {f"{prefix}count": np.asarray(sums.count, dtype=np.int64)}


def _check_shapes(tensors: Tensors, config: ModelConfig) -> None:
    heads, hidden = config.heads, config.hidden
    shapes: dict[str, tuple[int, ...]] = {"key_value": (heads, hidden, hidden), "key": (heads, hidden)}
    shapes |= {"query_square": (), "key_square": (), "count": ()}
    expected = {prefix + name: shape for prefix in ("", "sample.") for name, shape in shapes.items()}
    if tensors.keys() != expected.keys():
        raise SnapshotError(SUMS, f"holds {', '.join(sorted(tensors))}, expected {', '.join(sorted(expected))}")
    for name, shape in expected.items():
        kind, array = np.dtype(np.int64 if name.endswith("count") else np.float64), tensors[name]
        if array.shape != shape or array.dtype != kind:
            raise SnapshotError(SUMS, f"{name} is {array.dtype} {array.shape}, expected {kind} {shape}")
        if not np.isfinite(array).all():
            raise SnapshotError(SUMS, f"{name} holds NaN or infinity")


def _check_sample(stored: Tensors, recomputed: Tensors) -> None:
    for name, array in recomputed.items():
        scale = max(float(np.abs(array).max()), 1e-30)
        if not (np.abs(stored[name] - array) <= SAMPLE_TOLERANCE * scale).all():
            raise SnapshotError(SUMS, f"{name} does not follow from the weights and the node states")
