"""Variants of a row of features, each with one feature removed: set to zero, or to the encoding of a missing value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sgformer.arrays.operations import Indices
from sgformer.features import FeatureRows, SparseRows
from sgformer.request_time.inference import InferenceModel

MAX_FEATURES = 256
"""The largest number of features whose effects are computed: those that contribute most to the inputs of the model."""


def numbered_variants(model: InferenceModel, row: FeatureRows, limit: int = MAX_FEATURES) -> tuple[Indices, FeatureRows]:
    """The features of one row that are not zero, strongest first, and for each the row with zero in its place."""
    if isinstance(row, SparseRows):
        stored = np.flatnonzero(row.values)
        columns, values = np.asarray(row.indices[stored], dtype=np.int64), row.values[stored]
    else:
        columns = np.flatnonzero(row[0])
        values = row[0][columns]
    strengths = np.abs(values) * model.feature_norms()[columns]
    columns = columns[np.argsort(-strengths, kind="stable")[:limit]]
    if isinstance(row, SparseRows):
        return columns, _sparse_without(row, columns)
    rows = np.repeat(row, len(columns), axis=0)
    rows[np.arange(len(columns)), columns] = 0
    return columns, rows


def grouped_variants(
    model: InferenceModel,
    row: NDArray[np.floating],
    starts: Sequence[int],
    missing: Sequence[Sequence[float]],
    limit: int = MAX_FEATURES,
) -> tuple[Indices, FeatureRows]:
    """As `numbered_variants`, for groups of positions, e.g. the positions of a category. Group i begins at `starts[i]`, and
    its variant holds `missing[i]`, the encoding of a missing value. Groups that already hold it are left out.
    """
    norms = model.feature_norms()
    rows, strengths = [], []
    for start, values in zip(starts, missing, strict=True):
        changed = row.copy()
        changed[0, start : start + len(values)] = values
        rows.append(changed)
        strengths.append(float((np.abs(changed - row)[0] * norms).sum()))
    order = np.argsort(-np.array(strengths), kind="stable")
    groups = np.array([group for group in order[:limit] if strengths[group] > 0], dtype=np.int64)
    return groups, np.concatenate([rows[group] for group in groups]) if len(groups) else row[:0]


def _sparse_without(row: SparseRows, columns: Indices) -> SparseRows:
    """For each column, the row without it."""
    kept = [np.flatnonzero(row.indices != column) for column in columns]
    indptr = np.append(0, np.cumsum([len(entries) for entries in kept])).astype(np.int64)
    entries = np.concatenate(kept) if kept else np.empty(0, dtype=np.int64)
    return SparseRows(indptr, row.indices[entries], row.values[entries], row.width)
