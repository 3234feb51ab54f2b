"""The data that training saw: the features of the nodes before any transform, their labels, and the split.

Predictions do not need them. `GET /nodes/{id}` and a training on the stored graph (`--data live`) do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.errors import DataError
from model_store.format.layout import (
    FEATURES,
    FEATURES_INDICES,
    FEATURES_INDPTR,
    FEATURES_VALUES,
    LABELS,
    SPLIT,
    Sizes,
    optional_specs,
)
from sgformer import Graph, ModelConfig, SparseRows
from sgformer.features import FeatureRows

CHUNK_ROWS = 65_536


def raw_arrays(config: ModelConfig, sizes: Sizes, graph: Graph, labels: Any, split: Any) -> dict[str, NDArray[Any]]:
    """Returns the arrays to store, by file name. Labels and split may be None.

    Raises:
        DataError: the labels do not fit the task of the model, or the split is invalid.
    """
    features, specs = graph.features, optional_specs(config, sizes)
    arrays: dict[str, NDArray[Any]] = {}
    if isinstance(features, SparseRows):
        rows = _with_ascending_columns(features)
        arrays |= {FEATURES_INDPTR: rows.indptr, FEATURES_INDICES: rows.indices, FEATURES_VALUES: rows.values}
    else:
        arrays[FEATURES] = features
    if labels is not None:
        array, shape = np.asarray(labels), specs[LABELS].shape
        kinds = "iu" if config.task == "multiclass" else "fiub"
        # (N,) and (N, 1) are both accepted.
        if array.shape[:1] != shape[:1] or array.size != np.prod(shape) or array.dtype.kind not in kinds:
            what = "whole numbers" if config.task == "multiclass" else "numbers"
            raise DataError(f"labels are {array.dtype} {array.shape}, a {config.task} model needs {what} {shape}")
        arrays[LABELS] = array.reshape(shape)
        if problem := find_wrong_label(arrays[LABELS], config):
            raise DataError(f"the label {problem}")
    if split is not None:
        arrays[SPLIT] = np.asarray(split)
        if arrays[SPLIT].shape != specs[SPLIT].shape or find_wrong_part(arrays[SPLIT]):
            raise DataError(f"the split has shape {arrays[SPLIT].shape}, expected {specs[SPLIT].shape} of -1, 0, 1 and 2")
    return arrays


def features_from(arrays: Mapping[str, NDArray[Any]], width: int) -> FeatureRows | None:
    """Returns the features of all nodes, or None if there are none. The inverse of `raw_arrays` for features."""
    if FEATURES_VALUES in arrays:
        return SparseRows(arrays[FEATURES_INDPTR], arrays[FEATURES_INDICES], arrays[FEATURES_VALUES], width)
    return arrays.get(FEATURES)


def find_wrong_label(labels: NDArray[Any], config: ModelConfig) -> str | None:
    """Returns what is wrong with the first wrong label, or None."""
    for start in range(0, len(labels), CHUNK_ROWS):
        rows = labels[start : start + CHUNK_ROWS]
        if config.task == "multiclass":
            wrong, expected = (rows < -1) | (rows >= config.out_features), f"-1 to {config.out_features - 1}"
        elif config.task == "multilabel":
            wrong, expected = ~((rows == 0) | (rows == 1) | np.isnan(rows)), "0, 1 or NaN"
        else:
            wrong, expected = np.isinf(rows), "a finite number or NaN"
        if wrong.any():
            return f"of node {start + int(np.argwhere(wrong)[0][0])} is {rows[wrong][0]}, expected {expected}"
    return None


def find_wrong_part(split: NDArray[Any]) -> str | None:
    if split.dtype.kind not in "iu" or split.min() < -1 or split.max() > 2:
        return "holds a part other than 0 (training), 1 (validation), 2 (test) and -1 (none)"
    return None


def _with_ascending_columns(rows: SparseRows) -> SparseRows:
    numbers = rows.row_numbers()
    ascending = (rows.indices[1:] > rows.indices[:-1]) | (numbers[1:] != numbers[:-1])
    if ascending.all():
        return rows
    order = np.lexsort((rows.indices, numbers))
    return SparseRows(rows.indptr, rows.indices[order], rows.values[order], rows.width)
