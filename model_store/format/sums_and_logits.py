"""Writes and reads what the full-graph forward computes besides the node states.

sums.safetensors       the attention sums, and the same sums over a sample of rows, with which a reader checks them
states/logits.npy      the logits of every node
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from model_store.errors import SnapshotError, StoreError
from model_store.format import npy
from model_store.format.layout import SUMS, ArraySpec, Sizes, array_specs, state_file
from model_store.format.tensors import Tensors, read_tensors, write_tensors
from sgformer import AttentionSums, InferenceModel, ModelConfig
from sgformer.sums import SUM_NAMES

if TYPE_CHECKING:
    from sgformer import Summary  # loads torch, which readers do not need

SAMPLE_ROWS, SAMPLE_TOLERANCE = 1024, 1e-9
LOGITS_CHUNK_ROWS = 8192
Weights = Mapping[str, NDArray[Any]]


def write_sums(folder: Path, config: ModelConfig, sizes: Sizes, weights: Weights, sums: AttentionSums) -> None:
    """Writes the sums. The states must already be in the folder: the sample is computed from them as stored."""
    sample = _sum_sample(folder, config, sizes, weights)
    write_tensors(folder / SUMS, _to_tensors("", sums) | _to_tensors("sample.", sample))


def read_sums(folder: Path, config: ModelConfig, sizes: Sizes, weights: Weights) -> AttentionSums:
    """Returns the sums after checking that they are finite, over N rows, and fit the weights and states in this folder.

    Raises:
        SnapshotError: names the check that failed.
    """
    tensors = read_tensors(folder, SUMS)
    _check_shapes(tensors, config)
    if int(tensors["count"]) != sizes.nodes:
        raise SnapshotError(SUMS, f"counts {int(tensors['count'])} rows, expected {sizes.nodes}")
    for name, expected in _to_tensors("sample.", _sum_sample(folder, config, sizes, weights)).items():
        scale = max(float(np.abs(expected).max()), 1e-30)
        if not (np.abs(tensors[name] - expected) <= SAMPLE_TOLERANCE * scale).all():
            raise SnapshotError(SUMS, f"{name} does not follow from the weights and the node states")
    return AttentionSums(config.normalization, **{name: tensors[name] for name in SUM_NAMES}, count=sizes.nodes)


def write_logits(
    path: Path,
    spec: ArraySpec,
    config: ModelConfig,
    weights: Weights,
    summary: Summary,
    take_embeddings: Callable[[int, NDArray[Any]], None] = lambda _start, _embeddings: None,
) -> None:
    """Writes float32 logits of every node, computed from states before any rounding.

    For every block of nodes, calls `take_embeddings(start, embeddings)`; `start` is the row of the first node.
    """
    model, target = InferenceModel(config, weights), npy.create(path, spec)
    for start in range(0, len(target), LOGITS_CHUNK_ROWS):
        rows = np.arange(start, min(start + LOGITS_CHUNK_ROWS, len(target)))
        with np.errstate(all="ignore"):  # an overflow is reported below, with its node
            answers = model.known(summary.states, summary.sums, rows)
        wrong = ~np.isfinite(answers.logits).all(axis=1)
        if wrong.any():
            raise StoreError(f"the logits of node {rows[wrong.argmax()]} are NaN or infinite: the model has no answer there")
        target[start : start + len(rows)] = answers.logits
        take_embeddings(start, answers.embeddings)


def _sum_sample(folder: Path, config: ModelConfig, sizes: Sizes, weights: Weights) -> AttentionSums:
    """Returns the sums over evenly spaced rows, in float64: reproducible on every machine except for the last digits."""
    name = state_file("inputs")
    count = min(sizes.nodes, SAMPLE_ROWS)
    rows = npy.read_rows(folder, name, array_specs(config, sizes)[name], np.arange(count) * sizes.nodes // count)
    model = InferenceModel(config, weights, np.float64)
    query, key, value = model.project(rows.astype(np.float64), "query", "key", "value")
    return AttentionSums.of_rows(config.normalization, query, key, value)


def _to_tensors(prefix: str, sums: AttentionSums) -> Tensors:
    tensors = {prefix + name: np.asarray(getattr(sums, name), dtype=np.float64) for name in SUM_NAMES}
    return tensors | {f"{prefix}count": np.asarray(sums.count, dtype=np.int64)}


def _check_shapes(tensors: Tensors, config: ModelConfig) -> None:
    heads, hidden = config.heads, config.hidden
    shapes: dict[str, tuple[int, ...]] = {"key_value": (heads, hidden, hidden), "key": (heads, hidden)}
    shapes |= {"query_square": (), "key_square": (), "count": ()}
    expected = {prefix + name: shape for prefix in ("", "sample.") for name, shape in shapes.items()}
    if tensors.keys() != expected.keys():
        raise SnapshotError(SUMS, f"holds {', '.join(sorted(tensors))}, expected {', '.join(sorted(expected))}")
    for name, shape in expected.items():
        dtype, array = np.dtype(np.int64 if name.endswith("count") else np.float64), tensors[name]
        if array.shape != shape or array.dtype != dtype:
            raise SnapshotError(SUMS, f"{name} is {array.dtype} {array.shape}, expected {dtype} {shape}")
        if not np.isfinite(array).all():
            raise SnapshotError(SUMS, f"{name} holds NaN or infinity")
