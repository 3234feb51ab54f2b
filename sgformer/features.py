"""Feature rows, dense or sparse, and the transform that a model was trained with.

Sparse rows stay sparse: row normalisation scales the stored values, and standardisation is folded into the weights that
read the features (see `folded`), because subtracting a mean would fill in every zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sgformer.arrays import Array, Indices, ops_for, run_starts
from sgformer.config import FeatureTransform

Fail: TypeAlias = Callable[[str], Exception]
"""Turns a message into the caller's kind of error: the same checks serve graphs and requests."""


@dataclass(frozen=True)
class SparseRows:
    """Rows of features in CSR form: row i holds `values[indptr[i]:indptr[i+1]]` at columns `indices[...]`."""

    indptr: NDArray[np.integer[Any]]
    indices: NDArray[np.integer[Any]]
    values: NDArray[np.floating[Any]]
    width: int

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.indptr) - 1, self.width

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    def astype(self, dtype: Any) -> SparseRows:
        return SparseRows(self.indptr, self.indices, self.values.astype(dtype, copy=False), self.width)

    def __getitem__(self, rows: slice) -> SparseRows:
        """A run of rows, without copying their entries."""
        start, stop, _ = rows.indices(self.shape[0])
        first, last = int(self.indptr[start]), int(self.indptr[stop])
        indptr = self.indptr[start : stop + 1] - first
        return SparseRows(indptr, self.indices[first:last], self.values[first:last], self.width)

    def times(self, matrix: Array) -> Array:
        """These rows times a (width, o) matrix: only the matrix rows that some entry names are read."""
        return ops_for(matrix).sparse_product(self.indptr, self.indices, self.values, matrix)

    def toarray(self) -> NDArray[np.floating[Any]]:
        dense = np.zeros(self.shape, dtype=self.values.dtype)
        dense[self.row_numbers(), self.indices] = self.values
        return dense

    def row_numbers(self) -> Indices:
        return np.repeat(np.arange(self.shape[0]), np.diff(self.indptr))


FeatureRows: TypeAlias = NDArray[np.floating[Any]] | SparseRows


def checked_features(features: Any, width: int | None, fail: Fail) -> FeatureRows:
    """`features` as rows of finite floats (float32 stays float32, everything else numeric becomes float64 or float32)."""
    rows = _checked_sparse(features, fail) if isinstance(features, SparseRows) else _checked_dense(features, fail)
    if width is not None and rows.shape[1] != width:
        raise fail(f"features are {rows.shape[1]} wide, expected {width}")
    values = rows.values if isinstance(rows, SparseRows) else rows
    if not np.isfinite(values).all():
        raise fail(f"features hold NaN or infinity ({_first_bad(rows)}), expected finite numbers")
    return rows


def row_normalised(rows: FeatureRows) -> FeatureRows:
    """Every row divided by the sum of its absolute values; a row of zeros stays zero."""
    if isinstance(rows, SparseRows):
        sums = np.zeros(rows.shape[0], dtype=np.float64)
        filled = np.flatnonzero(np.diff(rows.indptr))
        if len(filled):
            sums[filled] = np.add.reduceat(np.abs(rows.values), rows.indptr[filled])
        scaled = rows.values / np.where(sums > 0, sums, 1)[rows.row_numbers()]
        return SparseRows(rows.indptr, rows.indices, scaled.astype(rows.values.dtype), rows.width)
    dense_sums = np.abs(rows).sum(axis=1, keepdims=True)
    return np.divide(rows, np.where(dense_sums > 0, dense_sums, 1))


def column_statistics(rows: FeatureRows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and scale of every column, in float64; the scale of a column that never varies is 1."""
    count = rows.shape[0]
    if isinstance(rows, SparseRows):
        values = rows.values.astype(np.float64)
        mean = np.bincount(rows.indices, weights=values, minlength=rows.width) / count
        square = np.bincount(rows.indices, weights=values**2, minlength=rows.width) / count
        variance = np.maximum(square - mean**2, 0)
    else:
        mean = rows.mean(axis=0, dtype=np.float64)
        variance = rows.var(axis=0, dtype=np.float64)
    # Rounding leaves a constant column with a variance of about 1e-32 times its square: that is not variation.
    constant = variance <= 1e-24 * np.maximum(mean**2, 1e-300)
    return mean, np.where(constant, 1.0, np.sqrt(variance))


def transformed(rows: FeatureRows, transform: FeatureTransform, mean: Array, scale: Array) -> FeatureRows:
    """What the weights of `folded` expect: everything of the transform that is not folded into them."""
    if transform == "row":
        return row_normalised(rows)
    if transform == "standard" and not isinstance(rows, SparseRows):
        standard: NDArray[np.floating[Any]] = np.divide(rows - mean, scale).astype(rows.dtype)
        return standard
    return rows


def folded(weight: Array, bias: Array, mean: Array, scale: Array) -> tuple[Array, Array]:
    """Standardisation inside an affine map: ((x - mean) / scale) W + b = x W' + b'."""
    scaled = weight / scale[:, None]
    return scaled, bias - mean @ scaled


def _checked_dense(features: Any, fail: Fail) -> NDArray[np.floating[Any]]:
    rows = np.asarray(features)
    if rows.ndim != 2:
        raise fail(f"features have {rows.ndim} dimension(s), expected 2 (rows x features)")
    if rows.dtype.kind not in "fiub":
        raise fail(f"features are of type {rows.dtype}, expected numbers")
    if rows.dtype == np.float64:
        return rows
    return rows.astype(np.float32, copy=False)


def _checked_sparse(rows: SparseRows, fail: Fail) -> SparseRows:
    indptr, indices = rows.indptr, rows.indices
    for name, array in (("indptr", indptr), ("indices", indices)):
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise fail(f"sparse features: {name} is {array.dtype} with {array.ndim} dimension(s), expected 1 of integers")
    if len(indptr) == 0 or indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
        raise fail(f"sparse features: indptr must rise from 0 to the number of entries ({len(indices)})")
    if rows.values.shape != indices.shape or rows.values.dtype.kind not in "fiub":
        raise fail(f"sparse features: {rows.values.shape} values of {rows.values.dtype} for {indices.shape} indices")
    if len(indices) and (indices.min() < 0 or indices.max() >= rows.width):
        bad = indices[(indices < 0) | (indices >= rows.width)][0]
        raise fail(f"sparse features: column {bad} is out of range, expected 0 to {rows.width - 1}")
    keys = rows.row_numbers() * rows.width + indices
    if len(np.unique(keys)) != len(keys):
        raise fail("sparse features: a row names the same column twice")
    return rows if rows.values.dtype == np.float64 else rows.astype(np.float32)


def _first_bad(rows: FeatureRows) -> str:
    if isinstance(rows, SparseRows):
        entry = int(np.flatnonzero(~np.isfinite(rows.values))[0])
        row = int(np.searchsorted(rows.indptr, entry, side="right")) - 1
        return f"row {row}, column {rows.indices[entry]}"
    row, column = np.argwhere(~np.isfinite(rows))[0]
    return f"row {row}, column {column}"


def stack_rows(parts: list[SparseRows]) -> SparseRows:
    """Sparse rows of equal width, one below the other."""
    lengths = np.concatenate([np.diff(part.indptr) for part in parts])
    indptr = np.append(run_starts(lengths), lengths.sum()) if len(lengths) else np.zeros(1, dtype=np.int64)
    indices = np.concatenate([part.indices for part in parts])
    return SparseRows(indptr, indices, np.concatenate([part.values for part in parts]), parts[0].width)
