"""Matrix products whose rows are bitwise independent of batch composition. numpy only.

BLAS chooses a kernel, and with it the order of additions, by the shapes of a product: the bits of a row may differ between
batches. Products of TILE rows at a time always use the same kernel. That kernel may still treat the rows of a tile
differently; this depends on the shape and not on the values, so a test with random numbers detects it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

TILE = 4
"""Rows at a time: a 64 x 64 product then takes a third of the time that it takes row by row; larger tiles gain nothing."""


def product(rows: NDArray[Any], matrix: NDArray[Any]) -> NDArray[Any]:
    """rows (n, i) times matrix (i, o). The bits of a row of the result depend on that row only."""
    count, inner = rows.shape
    if not tile_rows_are_equivalent(*matrix.shape, matrix.dtype):
        return np.asarray((rows[:, None, :] @ matrix)[:, 0])
    missing = -count % TILE
    if missing:
        rows = np.concatenate([rows, np.zeros((missing, inner), dtype=rows.dtype)])
    tiles = rows.reshape(-1, TILE, inner) @ matrix
    return np.asarray(tiles.reshape(-1, matrix.shape[1])[:count])


@cache
def tile_rows_are_equivalent(inner: int, outer: int, dtype: np.dtype[Any]) -> bool:
    """Whether a row gets the same bits at every position of a tile, on this machine.

    Another order of additions changes about a third of random sums, and TILE x outer sums are compared.
    """
    random = np.random.default_rng(0)
    rows = random.normal(size=(TILE, inner)).astype(dtype)
    matrix = random.normal(size=(inner, outer)).astype(dtype)
    expected = rows[None] @ matrix
    return all(
        np.array_equal(np.roll(rows, shift, axis=0)[None] @ matrix, np.roll(expected, shift, axis=1))
        for shift in range(1, TILE)
    )
