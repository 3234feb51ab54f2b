"""Feature rows, dense or sparse, and the transform that a model applies to them.

Sparse rows stay sparse: row normalisation scales the stored values. Standardisation would make every zero non-zero, so it is
folded into the weights that read the features (`folded`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sgformer.arrays.operations import Array, Indices, expand_runs, ops_for, run_starts
from sgformer.config import FeatureTransform

BLOCK_ROWS = 1 << 16
MAX_FLOAT32 = float(np.finfo(np.float32).max)
MakeError: TypeAlias = Callable[[str, int | None], Exception]
"""Makes the caller's exception from a message and the row at fault: graphs and requests share the checks."""


@dataclass(frozen=True)
class SparseRows:
    """Feature rows in CSR form: row i holds `values[indptr[i]:indptr[i+1]]` at the columns `indices[...]`."""

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
        """A range of rows, without copying their entries."""
        start, stop, step = rows.indices(self.shape[0])
        if step != 1:
            raise IndexError(f"sparse rows are sliced with step 1, not in steps of {step}")
        stop = max(start, stop)
        first, last = int(self.indptr[start]), int(self.indptr[stop])
        indptr = self.indptr[start : stop + 1] - first
        return SparseRows(indptr, self.indices[first:last], self.values[first:last], self.width)

    def take(self, rows: Indices) -> SparseRows:
        """Copies of these rows, in this order."""
        lengths = self.indptr[rows + 1] - self.indptr[rows]
        entries = expand_runs(self.indptr[rows], lengths)
        indptr = np.append(0, np.cumsum(lengths))
        return SparseRows(indptr, self.indices[entries], self.values[entries], self.width)

    def times(self, matrix: Array) -> Array:
        """These rows times a (width, o) matrix, of which only the rows at stored columns are read."""
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
    """Dense and sparse rows of equal width. Each row keeps its form, so its answer is bitwise independent of the others."""

    dense: NDArray[np.floating[Any]]
    sparse: SparseRows
    is_sparse: NDArray[np.bool_]
    """One entry per row."""

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.is_sparse), self.sparse.width

    def interleave(self, dense: Array, sparse: Array) -> Array:
        """Puts the results for the dense and for the sparse rows into the order of the rows."""
        order = np.argsort(np.concatenate([np.flatnonzero(~self.is_sparse), np.flatnonzero(self.is_sparse)]))
        ops = ops_for(dense)
        return ops.take(ops.concat([dense, sparse]), order)


@dataclass(frozen=True)
class MappedRows:
    """Rows of a graph whose features are not stored: instead of features, they have the results of the input layers.

    `InferenceModel.inputs` accepts them, so a full-graph forward and answers work. Everything else needs features.
    """

    inputs: Array
    """Z0 of all nodes of the graph."""
    initial: Array
    """The GCN's input, of all nodes of the graph."""
    rows: Indices
    """The nodes that these rows stand for."""
    width: int
    """The number of features."""

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), self.width

    def __getitem__(self, rows: slice) -> MappedRows:
        return MappedRows(self.inputs, self.initial, self.rows[rows], self.width)


def checked_features(features: Any, width: int | None, error: MakeError) -> Any:
    """Validates `features` (dense, `SparseRows`, `MixedRows` or scipy sparse) and returns rows of finite floats.

    float64 stays; every other type becomes float32.
    """
    features = _as_sparse_rows(features) if hasattr(features, "tocsr") else features
    if isinstance(features, MixedRows):
        return _checked_mixed(features, width, error)
    rows = _checked_sparse(features, error) if isinstance(features, SparseRows) else _checked_dense(features, error)
    if width is not None and rows.shape[1] != width:
        raise error(f"features are {rows.shape[1]} wide, expected {width}", None)
    check_values(rows, error)
    return rows


def check_values(rows: FeatureRows, error: MakeError, first_row: int = 0) -> None:
    """Raises the error for the first value that is not a finite float32. `first_row`: what the error adds to row numbers."""
    values = rows.values if isinstance(rows, SparseRows) else rows
    for start in range(0, len(values), BLOCK_ROWS):  # bounds the memory
        # Models run in float32: a larger value would become infinity later, where its row and column are unknown.
        valid = np.abs(values[start : start + BLOCK_ROWS]) <= MAX_FLOAT32
        if not valid.all():
            row, column = _first_invalid(rows, valid, start)
            row += first_row
            raise error(f"features hold NaN, infinity or more than 3.4e38 (row {row}, column {column})", row)


def as_array(values: Any, what: str, error: MakeError) -> NDArray[Any]:
    """np.asarray, with the caller's exception for lists of unequal lengths."""
    try:
        return np.asarray(values)
    except ValueError:
        raise error(f"{what} are lists of unequal lengths, expected the same number of entries in each", None) from None


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
    """Mean and scale of every column, in float64. The scale of a constant column is 1."""
    count = rows.shape[0]
    if isinstance(rows, SparseRows):
        values = rows.values.astype(np.float64)
        mean = np.bincount(rows.indices, weights=values, minlength=rows.width) / count
        zeros = count - np.bincount(rows.indices, minlength=rows.width)
        squares = np.bincount(rows.indices, weights=(values - mean[rows.indices]) ** 2, minlength=rows.width)
        variance = (squares + zeros * mean**2) / count
    else:
        blocks = range(0, count, BLOCK_ROWS)  # bounds the memory
        mean = sum(rows[start : start + BLOCK_ROWS].sum(axis=0, dtype=np.float64) for start in blocks) / count
        variance = sum(((rows[start : start + BLOCK_ROWS] - mean) ** 2).sum(axis=0) for start in blocks) / count
    # Rounding gives a constant column a variance of about 1e-32 times its square.
    constant = variance <= 1e-24 * np.maximum(mean**2, 1e-300)
    return mean, np.where(constant, 1.0, np.sqrt(variance))


def transformed(rows: FeatureRows, transform: FeatureTransform, mean: Array, scale: Array) -> FeatureRows:
    """Applies the part of the transform that is not folded into the weights. Computes in float64, so that the result does
    not depend on the precision of the features.
    """
    if transform == "row":
        return row_normalised(rows)
    if transform == "standard" and not isinstance(rows, SparseRows):
        return np.asarray((rows - mean) / scale, dtype=np.float64)
    return rows


def folded(weight: Array, bias: Array, mean: Array, scale: Array) -> tuple[Array, Array]:
    """Folds standardisation into an affine map: ((x - mean) / scale) W + b = x W' + b'."""
    scaled = weight / scale[:, None]
    return scaled, bias - mean @ scaled


def _checked_dense(features: Any, error: MakeError) -> NDArray[np.floating[Any]]:
    rows = as_array(features, "features", error)
    if rows.ndim != 2:
        raise error(f"features have {rows.ndim} dimension(s), expected 2 (rows x features)", None)
    if rows.dtype.kind not in "fiub":
        raise error(f"features are of type {rows.dtype}, expected numbers", None)
    return rows if rows.dtype == np.float64 else rows.astype(np.float32, copy=False)


def _checked_sparse(rows: SparseRows, error: MakeError) -> SparseRows:
    indptr, indices, values = (np.asarray(part) for part in (rows.indptr, rows.indices, rows.values))
    for name, array in (("indptr", indptr), ("indices", indices)):
        if array.ndim != 1 or array.dtype.kind not in "iu":
            shape = f"{array.dtype} with {array.ndim} dimension(s)"
            raise error(f"sparse features: {name} is {shape}, expected integers with 1 dimension", None)
    indptr = indptr.astype(np.int64)  # differences of unsigned integers would wrap around
    if len(indptr) == 0 or indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
        raise error(f"sparse features: indptr must rise from 0 to the number of entries ({len(indices)})", None)
    if values.shape != indices.shape or values.dtype.kind not in "fiub":
        shapes = f"{values.shape} values of {values.dtype} for {indices.shape} indices"
        raise error(f"sparse features: {shapes}, expected a number per index", None)
    checked = SparseRows(indptr, indices, values, rows.width)
    if len(indices) and (indices.min() < 0 or indices.max() >= rows.width):
        row, column = _first_invalid(checked, (indices >= 0) & (indices < rows.width))
        raise error(f"sparse features: column {column} is out of range, expected 0 to {rows.width - 1}", row)
    keys = np.sort(checked.row_numbers() * rows.width + indices)
    if (repeated := keys[1:][keys[1:] == keys[:-1]]).size:
        row, column = divmod(int(repeated[0]), rows.width)
        raise error(f"sparse features: row {row} names column {column} twice, expected distinct columns", row)
    return checked if values.dtype == np.float64 else checked.astype(np.float32)


def _checked_mixed(rows: MixedRows, width: int | None, error: MakeError) -> MixedRows:
    def error_at(positions: Indices) -> MakeError:
        return lambda message, row: error(message, None if row is None else int(positions[row]))

    dense = checked_features(rows.dense, width, error_at(np.flatnonzero(~rows.is_sparse)))
    return MixedRows(dense, checked_features(rows.sparse, width, error_at(np.flatnonzero(rows.is_sparse))), rows.is_sparse)


def _first_invalid(rows: FeatureRows, valid: NDArray[np.bool_], start: int = 0) -> tuple[int, int]:
    """Row and column of the first invalid entry; `valid` begins at row `start`, or, for sparse rows, at entry `start`."""
    if isinstance(rows, SparseRows):
        entry = start + int(np.flatnonzero(~valid)[0])
        return int(np.searchsorted(rows.indptr, entry, side="right")) - 1, int(rows.indices[entry])
    row, column = np.argwhere(~valid)[0]
    return start + int(row), int(column)


def _as_sparse_rows(matrix: Any) -> SparseRows:
    """From a scipy sparse matrix, which is not changed."""
    matrix = matrix.tocsr(copy=True)
    matrix.sum_duplicates()
    return SparseRows(matrix.indptr, matrix.indices, matrix.data, matrix.shape[1])


def take_rows(rows: FeatureRows | MixedRows, positions: Indices) -> FeatureRows | MixedRows:
    """Copies of the rows at these positions, in this order. Each stays dense or sparse."""
    if isinstance(rows, SparseRows):
        return rows.take(positions)
    if not isinstance(rows, MixedRows):
        return rows[positions]
    is_sparse = rows.is_sparse[positions]
    part_rows = np.where(rows.is_sparse, np.cumsum(rows.is_sparse), np.cumsum(~rows.is_sparse)) - 1
    dense, sparse = rows.dense[part_rows[positions[~is_sparse]]], rows.sparse.take(part_rows[positions[is_sparse]])
    return MixedRows(dense, sparse, is_sparse)


def stack_rows(parts: list[SparseRows]) -> SparseRows:
    """Concatenates sparse rows of equal width."""
    lengths = np.concatenate([np.diff(part.indptr) for part in parts])
    indptr = np.append(run_starts(lengths), lengths.sum()) if len(lengths) else np.zeros(1, dtype=np.int64)
    indices = np.concatenate([part.indices for part in parts])
    return SparseRows(indptr, indices, np.concatenate([part.values for part in parts]), parts[0].width)


def stack_any(parts: list[Any]) -> Any:
    """Concatenates rows of any form."""
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    if all(isinstance(part, SparseRows) for part in parts):
        return stack_rows(parts)
    dense = [part.dense if isinstance(part, MixedRows) else part for part in parts if not isinstance(part, SparseRows)]
    sparse = [part.sparse if isinstance(part, MixedRows) else part for part in parts if not isinstance(part, np.ndarray)]
    masks = [p.is_sparse if isinstance(p, MixedRows) else np.full(p.shape[0], isinstance(p, SparseRows)) for p in parts]
    return MixedRows(np.concatenate(dense), stack_rows(sparse), np.concatenate(masks))
