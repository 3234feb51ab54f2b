"""Matrix products whose rows do not depend on their company. numpy only.

A BLAS product picks its kernel, and with it the order of its additions, by the shapes it is given: a row may come out with
other bits alone than among others. Products of a few rows at a time, always the same few, all take one kernel. Whether that
kernel treats all of those rows alike is a matter of the shape and not of the values, so a look at random numbers tells.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

TILE = 4
"""Rows at a time: at 64 x 64 a product costs a third of what it costs row by row, and larger tiles gain nothing."""


def product(rows: NDArray[Any], matrix: NDArray[Any]) -> NDArray[Any]:
    """rows (n, i) times matrix (i, o). A row of it has the same bits, whatever the other rows are and however many."""
    count, inner = rows.shape
    if not places_are_alike(*matrix.shape, matrix.dtype):
        return np.asarray((rows[:, None, :] @ matrix)[:, 0])
    missing = -count % TILE
    if missing:
        rows = np.concatenate([rows, np.zeros((missing, inner), dtype=rows.dtype)])
    tiles = rows.reshape(-1, TILE, inner) @ matrix
    return np.asarray(tiles.reshape(-1, matrix.shape[1])[:count])


@cache
def places_are_alike(inner: int, outer: int, dtype: np.dtype[Any]) -> bool:
    """Whether a row has the same bits in every place of a tile, on this machine.

    Another order of additions shows in about every third of random sums, and there are TILE x outer of them.
    """
    random = np.random.default_rng(0)
    rows = random.normal(size=(TILE, inner)).astype(dtype)
    matrix = random.normal(size=(inner, outer)).astype(dtype)
    here = rows[None] @ matrix
    return all(
        np.array_equal(np.roll(rows, places, axis=0)[None] @ matrix, np.roll(here, places, axis=1))
        for places in range(1, TILE)
    )
