"""Exact nearest rows: a product with every row, in blocks that bound memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sgformer.arrays.operations import Indices

BLOCK_ROWS = 16_384
"""Rows per block: 4 MB for 64 numbers per row, so that a block stays in the cache while it is multiplied."""


class Nearest(NamedTuple):
    """The nearest rows of each query, nearest first: (queries, k). Equally near rows are in ascending order."""

    rows: Indices
    """-1 where there are fewer than k rows."""
    similarities: NDArray[Any]

    def merged(self, other: Nearest, k: int) -> Nearest:
        """The k nearest of both, which have no row in common."""
        rows = np.concatenate([self.rows, other.rows], axis=1)
        similarities = np.concatenate([self.similarities, other.similarities], axis=1)
        order = np.lexsort((rows, -similarities), axis=1)[:, :k]
        return Nearest(np.take_along_axis(rows, order, axis=1), np.take_along_axis(similarities, order, axis=1))


def unit_rows(rows: NDArray[Any]) -> NDArray[np.float32]:
    """Rows divided by their lengths, as float32; a row of zeros stays zero: its similarity to every row is 0."""
    wide = np.asarray(rows, dtype=np.float64)
    lengths = np.sqrt(np.vecdot(wide, wide))
    return np.asarray(wide / np.where(lengths > 0, lengths, 1)[:, None], dtype=np.float32)


def nearest(rows: NDArray[Any], queries: NDArray[Any], k: int, numbers: Indices | None = None) -> Nearest:
    """The k nearest of unit rows to each unit query. `numbers` are the numbers of the rows, by default their positions."""
    best = Nearest(np.empty((len(queries), 0), dtype=np.int64), np.empty((len(queries), 0), dtype=np.float32))
    for start in range(0, len(rows), BLOCK_ROWS):
        block = rows[start : start + BLOCK_ROWS]
        positions, similarities = largest(queries @ block.T, k)
        positions += start
        best = best.merged(Nearest(positions if numbers is None else numbers[positions], similarities), k)
    return best


def largest(similarities: NDArray[Any], k: int) -> tuple[Indices, NDArray[Any]]:
    """The positions of the k largest values of each row, and these values; all of them if a row has at most k."""
    if similarities.shape[1] <= k:
        positions = np.broadcast_to(np.arange(similarities.shape[1]), similarities.shape).copy()
    else:
        positions = np.argpartition(similarities, -k, axis=1)[:, -k:]
    return positions, np.take_along_axis(similarities, positions, axis=1)
