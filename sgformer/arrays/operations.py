"""The array operations that numpy, torch and ONNX spell differently.

The request-time mathematics is written once, with operators that arrays of all three have, and takes the rest from
`ops_for(array)`. Serving on a CPU uses numpy: torch is imported only for a torch tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sgformer.arrays import tiles

if TYPE_CHECKING:
    from sgformer.arrays.torch_operations import TorchOps

Array: TypeAlias = Any
"""A numpy array, a torch tensor or an `OnnxArray`. No type describes all, and naming torch here would import it."""

Indices: TypeAlias = NDArray[np.int64]
AnyIndices: TypeAlias = NDArray[np.integer[Any]]
Ops: TypeAlias = "NumpyOps | TorchOps"


class NumpyOps:
    """The bits of a result for a node do not depend on the other nodes of a batch: products run in tiles, and a sum never
    mixes rows of different nodes.

    `TorchOps` has the same operations, and `OnnxRecorder` those of the output head.
    """

    def product(self, rows: Array, matrix: Array) -> Array:
        """rows (n, i) times matrix (i, o)."""
        return tiles.product(rows, matrix)

    def affine(self, rows: Array, matrix: Array, bias: Array) -> Array:
        """The product, plus a bias for every row."""
        out = self.product(rows, matrix)
        out += bias
        return out

    def layer_norm(self, rows: Array, weight: Array, bias: Array, epsilon: float) -> Array:
        # A dot product per row takes half the time of a reduction, and its bits depend on that row only.
        share = np.full(rows.shape[-1], 1 / rows.shape[-1], dtype=rows.dtype)
        out = rows - np.vecdot(rows, share)[:, None]
        variance = np.vecdot(out, out) / rows.dtype.type(rows.shape[-1])
        variance[variance == np.inf] = np.nan  # as in torch; division by infinity would give a row of zeros
        out /= np.sqrt(variance + rows.dtype.type(epsilon))[:, None]
        out *= weight
        out += bias
        return out

    def unit(self, rows: Array, filler: float) -> Array:
        """rows (n, H, d) divided by their lengths, after exact zeros are replaced by `filler`."""
        filled = np.where(rows == 0, rows.dtype.type(filler), rows)
        squares = np.square(filled).sum(axis=-1, keepdims=True)
        squares[squares == np.inf] = np.nan  # the length overflows: the row has no direction
        return filled / np.sqrt(squares)

    def head_product(self, rows: Array, matrices: Array) -> Array:
        """rows (n, H, i) times a matrix (i, o) per head."""
        return (rows[:, :, None, :] @ matrices)[:, :, 0]

    def sparse_product(self, indptr: AnyIndices, indices: AnyIndices, values: NDArray[Any], matrix: Array) -> Array:
        """The rows of a CSR matrix times `matrix`."""
        out = np.zeros((len(indptr) - 1, matrix.shape[1]), dtype=matrix.dtype)
        filled = np.flatnonzero(np.diff(indptr))
        if len(filled):
            weighted = matrix[indices] * values.astype(matrix.dtype)[:, None]
            out[filled] = self.segment_sum(weighted, indptr[filled])
        return out

    def take(self, source: Array, rows: Indices) -> Array:
        """These rows of `source`: an array, a memory map, or an object with a method `take` (`sgformer.live`)."""
        return np.asarray(source).take(rows, axis=0) if isinstance(source, np.ndarray) else source.take(rows)

    def segment_sum(self, rows: Array, starts: AnyIndices) -> Array:
        """Sums over the runs of rows that begin at `starts`; no run is empty."""
        lengths = np.diff(starts, append=len(rows))
        if (lengths == 1).sum() * 2 < len(lengths):
            return np.add.reduceat(rows, starts, axis=0)
        # Most runs are single rows (each neighbour of a hub receives one term), for which reduceat is slow.
        sums = rows[starts]
        longer = np.flatnonzero(lengths > 1)
        if len(longer):
            positions = expand_runs(starts[longer], lengths[longer])
            sums[longer] = np.add.reduceat(rows[positions], run_starts(lengths[longer]), axis=0)
        return sums

    def concat(self, parts: list[Array], axis: int = 0) -> Array:
        return np.concatenate(parts, axis=axis)

    def relu(self, rows: Array) -> Array:
        """May overwrite `rows`."""
        return np.maximum(rows, 0, out=rows)

    def mix(self, rows: Array, others: Array, share: float) -> Array:
        """(1 - share) rows + share others. May overwrite `rows`."""
        rows *= 1 - share
        rows += share * others
        return rows

    def cast(self, array: Array, like: Array) -> Array:
        """`array` with the type and on the device of `like`."""
        return np.asarray(array).astype(like.dtype, copy=False)


NUMPY = NumpyOps()


def ops_for(array: Array) -> Ops:
    if isinstance(array, np.ndarray):
        return NUMPY
    if hasattr(array, "ops"):  # an OnnxArray, which records
        return array.ops  # type: ignore[no-any-return]
    from sgformer.arrays.torch_operations import TorchOps

    return TorchOps(array.device)


def run_starts(lengths: AnyIndices) -> Indices:
    """The positions at which runs of these lengths begin if they are concatenated."""
    starts: Indices = np.subtract(lengths.cumsum(dtype=np.int64), lengths, dtype=np.int64)
    return starts


def expand_runs(begins: NDArray[np.integer[Any]], lengths: AnyIndices) -> Indices:
    """Concatenates the ranges begins[i], begins[i] + 1, ..., begins[i] + lengths[i] - 1."""
    ends = lengths.cumsum(dtype=np.int64)
    shift = (begins - ends + lengths).repeat(lengths)
    positions: Indices = np.arange(len(shift), dtype=np.int64) + shift
    return positions
