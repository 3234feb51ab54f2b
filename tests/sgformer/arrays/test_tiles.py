"""The rows of a product are bitwise independent of batch composition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgformer.arrays import tiles


@given(
    st.integers(1, 13),
    st.integers(1, 80),
    st.integers(1, 80),
    st.sampled_from([np.float32, np.float64]),
    st.integers(0, 2**31),
)
def test_a_row_has_the_same_bits_alone_and_in_any_batch(count: int, inner: int, outer: int, dtype: type, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows, matrix = random.normal(size=(count, inner)).astype(dtype), random.normal(size=(inner, outer)).astype(dtype)
    batch = tiles.product(rows, matrix)
    np.testing.assert_allclose(batch, rows @ matrix, rtol=1e-4 if dtype is np.float32 else 1e-10, atol=1e-4)
    for place in range(count):
        np.testing.assert_array_equal(tiles.product(rows[place : place + 1], matrix)[0], batch[place])
    order = random.permutation(count)
    np.testing.assert_array_equal(tiles.product(rows[order], matrix), batch[order])


def test_rows_are_multiplied_singly_if_positions_in_a_tile_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "tile_rows_are_equivalent", lambda *_: False)
    rows, matrix = np.random.default_rng(0).normal(size=(7, 5)), np.random.default_rng(1).normal(size=(5, 3))
    result = tiles.product(rows, matrix)
    np.testing.assert_array_equal(result, np.concatenate([row[None, None] @ matrix for row in rows])[:, 0])


def test_a_kernel_with_another_order_of_additions_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """This kernel sums the last row of a tile in reverse order."""

    class Uneven(np.ndarray):
        def __matmul__(self, matrix: np.ndarray) -> np.ndarray:  # type: ignore[override]
            result = np.asarray(self) @ matrix
            result[0, -1] = np.asarray(self)[0, -1, ::-1].copy() @ matrix[::-1].copy()
            return result

    real = np.random.default_rng

    class Random:
        def __init__(self, seed: int) -> None:
            self._real = real(seed)

        def normal(self, size: tuple[int, ...]) -> np.ndarray:
            return self._real.normal(size=size).view(Uneven)

    assert tiles.tile_rows_are_equivalent.__wrapped__(64, 64, np.dtype(np.float32))
    monkeypatch.setattr(np.random, "default_rng", Random)
    assert not tiles.tile_rows_are_equivalent.__wrapped__(64, 64, np.dtype(np.float32))
