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

from sgformer.arrays.operations import Array, Indices, ops_for, run_starts
from sgformer.config import FeatureTransform

Fail: TypeAlias = Callable[[str, int | None], Exception]
"""Turns a message, and the row that is to blame, into the caller's kind of error: graphs and requests share the checks."""


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
        start, stop, step = rows.indices(self.shape[0])
        if step != 1:
            raise IndexError(f"sparse rows are taken in runs, not in steps of {step}")
        stop = max(start, stop)
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


@dataclass(frozen=True)
class MixedRows:
    """Dense and sparse rows of equal width. Each keeps its form, so that its answer has the bits that it has alone."""

    dense: NDArray[np.floating[Any]]
    sparse: SparseRows
    is_sparse: NDArray[np.bool_]
    """For every row, in order."""

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.is_sparse), self.sparse.width

    def joined(self, dense: Array, sparse: Array) -> Array:
        """Results for the dense and for the sparse rows, in the order of the rows."""
        order = np.argsort(np.concatenate([np.flatnonzero(~self.is_sparse), np.flatnonzero(self.is_sparse)]))
        ops = ops_for(dense)
        return ops.take(ops.concat([dense, sparse]), order)


def checked_features(features: Any, width: int | None, fail: Fail) -> Any:
    """`features` (dense, `SparseRows`, `MixedRows` or scipy sparse) as rows of finite floats.

    float64 stays, everything else becomes float32.
    """
    features = _as_sparse_rows(features) if hasattr(features, "tocsr") else features
    if isinstance(features, MixedRows):
        return _checked_mixed(features, width, fail)
    rows = _checked_sparse(features, fail) if isinstance(features, SparseRows) else _checked_dense(features, fail)
    if width is not None and rows.shape[1] != width:
        raise fail(f"features are {rows.shape[1]} wide, expected {width}", None)
    values = rows.values if isinstance(rows, SparseRows) else rows
    # Models run in float32: what that cannot hold would become infinity later, where nobody could name it.
    good = np.abs(values) <= np.finfo(np.float32).max
    if not good.all():
        row, column = _place(rows, good)
        raise fail(f"features hold NaN, infinity or more than 3.4e38 (row {row}, column {column})", row)
    return rows


def as_array(values: Any, what: str, fail: Fail) -> NDArray[Any]:
    """np.asarray with the caller's kind of error for lists of unequal lengths."""
    try:
        return np.asarray(values)
    except ValueError:
        raise fail(f"{what} are lists of unequal lengths, expected the same number of entries in each", None) from None


def row_normalised(rows: FeatureRows) -> FeatureRows:
    """Every row divided by the sum of its absolute values; a row of zeros stays zero."""
    if isinstance(rows, SparseRows):
        values = rows.values.astype(np.float64)
        sums = np.bincount(rows.row_numbers(), weights=np.abs(values), minlength=rows.shape[0])
        return SparseRows(rows.indptr, rows.indices, values / np.where(sums > 0, sums, 1)[rows.row_numbers()], rows.width)
    dense = rows.astype(np.float64)
    dense_sums = np.abs(dense).sum(axis=1, keepdims=True)
    return np.divide(dense, np.where(dense_sums > 0, dense_sums, 1))


def column_statistics(rows: FeatureRows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and scale of every column, in float64; the scale of a column that never varies is 1."""
    count = rows.shape[0]
    if isinstance(rows, SparseRows):
        values = rows.values.astype(np.float64)
        mean = np.bincount(rows.indices, weights=values, minlength=rows.width) / count
        zeros = count - np.bincount(rows.indices, minlength=rows.width)
        squares = np.bincount(rows.indices, weights=(values - mean[rows.indices]) ** 2, minlength=rows.width)
        variance = (squares + zeros * mean**2) / count
    else:
        mean = rows.mean(axis=0, dtype=np.float64)
        variance = rows.var(axis=0, dtype=np.float64)
    # Rounding leaves a constant column with a variance of about 1e-32 times its square: that is not variation.
    constant = variance <= 1e-24 * np.maximum(mean**2, 1e-300)
    return mean, np.where(constant, 1.0, np.sqrt(variance))


def transformed(rows: FeatureRows, transform: FeatureTransform, mean: Array, scale: Array) -> FeatureRows:
    """What the weights of `folded` expect: everything of the transform that is not folded into them. In float64, so that the
    result does not depend on the precision in which the features came.
    """
    if transform == "row":
        return row_normalised(rows)
    if transform == "standard" and not isinstance(rows, SparseRows):
        return np.asarray((rows - mean) / scale, dtype=np.float64)
    return rows


def folded(weight: Array, bias: Array, mean: Array, scale: Array) -> tuple[Array, Array]:
    """Standardisation inside an affine map: ((x - mean) / scale) W + b = x W' + b'."""
    scaled = weight / scale[:, None]
    return scaled, bias - mean @ scaled


def _checked_dense(features: Any, fail: Fail) -> NDArray[np.floating[Any]]:
    rows = as_array(features, "features", fail)
    if rows.ndim != 2:
        raise fail(f"features have {rows.ndim} dimension(s), expected 2 (rows x features)", None)
    if rows.dtype.kind not in "fiub":
        raise fail(f"features are of type {rows.dtype}, expected numbers", None)
    if rows.dtype == np.float64:
        return rows
    return rows.astype(np.float32, copy=False)


def _checked_sparse(rows: SparseRows, fail: Fail) -> SparseRows:
    indptr, indices, values = (np.asarray(part) for part in (rows.indptr, rows.indices, rows.values))
    for name, array in (("indptr", indptr), ("indices", indices)):
        if array.ndim != 1 or array.dtype.kind not in "iu":
            found = f"{array.dtype} with {array.ndim} dimension(s)"
            raise fail(f"sparse features: {name} is {found}, expected 1 of integers", None)
    indptr = indptr.astype(np.int64)  # differences of unsigned numbers would wrap around
    if len(indptr) == 0 or indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
        raise fail(f"sparse features: indptr must rise from 0 to the number of entries ({len(indices)})", None)
    if values.shape != indices.shape or values.dtype.kind not in "fiub":
        raise fail(f"sparse features: {values.shape} values of {values.dtype} for {indices.shape} indices", None)
    checked = SparseRows(indptr, indices, values, rows.width)
    if len(indices) and (indices.min() < 0 or indices.max() >= rows.width):
        row, bad = _place(checked, (indices >= 0) & (indices < rows.width))
        raise fail(f"sparse features: column {bad} is out of range, expected 0 to {rows.width - 1}", row)
    keys = np.sort(checked.row_numbers() * rows.width + indices)
    if (repeated := keys[1:][keys[1:] == keys[:-1]]).size:
        row, column = divmod(int(repeated[0]), rows.width)
        raise fail(f"sparse features: row {row} names column {column} twice", row)
    return checked if values.dtype == np.float64 else checked.astype(np.float32)


def _checked_mixed(rows: MixedRows, width: int | None, fail: Fail) -> MixedRows:
    def fail_at(places: Indices) -> Fail:
        return lambda message, row: fail(message, None if row is None else int(places[row]))

    dense = checked_features(rows.dense, width, fail_at(np.flatnonzero(~rows.is_sparse)))
    return MixedRows(dense, checked_features(rows.sparse, width, fail_at(np.flatnonzero(rows.is_sparse))), rows.is_sparse)


def _place(rows: FeatureRows, good: NDArray[np.bool_]) -> tuple[int, int]:
    """Row and column of the first entry that is not good."""
    if isinstance(rows, SparseRows):
        entry = int(np.flatnonzero(~good)[0])
        return int(np.searchsorted(rows.indptr, entry, side="right")) - 1, int(rows.indices[entry])
    row, column = np.argwhere(~good)[0]
    return int(row), int(column)


def _as_sparse_rows(matrix: Any) -> SparseRows:
    """A scipy sparse matrix; the caller's own is left as it is."""
    matrix = matrix.tocsr(copy=True)
    matrix.sum_duplicates()
    return SparseRows(matrix.indptr, matrix.indices, matrix.data, matrix.shape[1])


def stack_rows(parts: list[SparseRows]) -> SparseRows:
    """Sparse rows of equal width, one below the other."""
    lengths = np.concatenate([np.diff(part.indptr) for part in parts])
    indptr = np.append(run_starts(lengths), lengths.sum()) if len(lengths) else np.zeros(1, dtype=np.int64)
    indices = np.concatenate([part.indices for part in parts])
    return SparseRows(indptr, indices, np.concatenate([part.values for part in parts]), parts[0].width)


def stack_any(parts: list[Any]) -> Any:
    """Rows of any form, one below the other."""
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    if all(isinstance(part, SparseRows) for part in parts):
        return stack_rows(parts)
    dense = [part.dense if isinstance(part, MixedRows) else part for part in parts if not isinstance(part, SparseRows)]
    sparse = [part.sparse if isinstance(part, MixedRows) else part for part in parts if not isinstance(part, np.ndarray)]
    kinds = [p.is_sparse if isinstance(p, MixedRows) else np.full(p.shape[0], isinstance(p, SparseRows)) for p in parts]
    return MixedRows(np.concatenate(dense), stack_rows(sparse), np.concatenate(kinds))
