"""A row of a product has the same bits alone and in any company."""

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
def test_rows_do_not_depend_on_their_company(count: int, inner: int, outer: int, dtype: type, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows, matrix = random.normal(size=(count, inner)).astype(dtype), random.normal(size=(inner, outer)).astype(dtype)
    together = tiles.product(rows, matrix)
    np.testing.assert_allclose(together, rows @ matrix, rtol=1e-4 if dtype is np.float32 else 1e-10, atol=1e-4)
    for place in range(count):
        np.testing.assert_array_equal(tiles.product(rows[place : place + 1], matrix)[0], together[place])
    order = random.permutation(count)
    np.testing.assert_array_equal(tiles.product(rows[order], matrix), together[order])


def test_where_places_differ_rows_go_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "places_are_alike", lambda *_: False)
    rows, matrix = np.random.default_rng(0).normal(size=(7, 5)), np.random.default_rng(1).normal(size=(5, 3))
    found = tiles.product(rows, matrix)
    np.testing.assert_array_equal(found, np.concatenate([row[None, None] @ matrix for row in rows])[:, 0])


def test_the_look_at_a_kernel_sees_another_order_of_additions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that adds the last row of a tile up from behind."""

    class Uneven(np.ndarray):
        def __matmul__(self, matrix: np.ndarray) -> np.ndarray:  # type: ignore[override]
            here = np.asarray(self) @ matrix
            here[0, -1] = np.asarray(self)[0, -1, ::-1].copy() @ matrix[::-1].copy()
            return here

    real = np.random.default_rng

    class Random:
        def __init__(self, seed: int) -> None:
            self._real = real(seed)

        def normal(self, size: tuple[int, ...]) -> np.ndarray:
            return self._real.normal(size=size).view(Uneven)

    assert tiles.places_are_alike.__wrapped__(64, 64, np.dtype(np.float32))
    monkeypatch.setattr(np.random, "default_rng", Random)
    assert not tiles.places_are_alike.__wrapped__(64, 64, np.dtype(np.float32))
