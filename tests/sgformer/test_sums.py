from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgformer import AttentionSums, ModelConfig, SumsError
from tests.sgformer.cases import assert_close
from tests.sgformer.naive import attention_matrix, unit_rows

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]


@st.composite
def attention_rows(draw: Any) -> tuple[Literal["frobenius", "row"], Rows]:
    """Queries, keys and values as `InferenceModel.project` returns them: unit rows with `row` normalisation."""
    normalization = draw(st.sampled_from(["frobenius", "row"]))
    shape = (draw(st.integers(2, 30)), draw(st.integers(1, 4)), draw(st.integers(2, 5)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    query, key, value = (rng.normal(size=shape) for _ in range(3))
    if normalization == "row":
        query, key = unit_rows(query), unit_rows(key)
    return normalization, (query, key, value)


def part(rows: Rows, chosen: slice) -> Rows:
    return rows[0][chosen], rows[1][chosen], rows[2][chosen]


def assert_equal_sums(actual: AttentionSums, expected: AttentionSums) -> None:
    for field in fields(AttentionSums):
        if field.name == "normalization":
            assert actual.normalization == expected.normalization
        else:
            assert_close(getattr(actual, field.name), np.asarray(getattr(expected, field.name)))


@given(attention_rows(), st.integers(1, 29))
def test_sums_of_chunks_add_up_to_the_sums_of_all_rows(drawn: tuple[Any, Rows], cut: int) -> None:
    normalization, rows = drawn
    whole = AttentionSums.of_rows(normalization, *rows)
    first, second = (AttentionSums.of_rows(normalization, *part(rows, s)) for s in (slice(0, cut), slice(cut, None)))
    assert_equal_sums(first + second, whole)
    assert_equal_sums(second + first, whole)
    assert_equal_sums(AttentionSums.empty(normalization, *rows[0].shape[1:]) + whole, whole)


@given(attention_rows(), st.integers(1, 29))
def test_removing_added_rows_restores_the_sums(drawn: tuple[Any, Rows], cut: int) -> None:
    normalization, rows = drawn
    before = AttentionSums.of_rows(normalization, *part(rows, slice(cut, None)))
    added = part(rows, slice(0, cut))
    assert_equal_sums(before.with_rows(*added), AttentionSums.of_rows(normalization, *rows))
    assert_equal_sums(before.with_rows(*added) - AttentionSums.of_rows(normalization, *added), before)


@given(attention_rows())
def test_attending_equals_the_all_pair_attention(drawn: tuple[Any, Rows]) -> None:
    normalization, (query, key, value) = drawn
    config = ModelConfig(in_features=1, out_features=1, heads=query.shape[1], normalization=normalization)
    attention = attention_matrix(config, query, key)
    expected = np.mean([attention[head] @ value[:, head] for head in range(config.heads)], axis=0)
    sums = AttentionSums.of_rows(normalization, query, key, value)
    assert_close(sums.attend(query, value), expected)


@given(attention_rows())
def test_attending_each_added_equals_adding_each_row_alone(drawn: tuple[Any, Rows]) -> None:
    normalization, rows = drawn
    stored, new = part(rows, slice(1, None)), rows
    sums = AttentionSums.of_rows(normalization, *stored)
    each = sums.attend_each_added(*new)
    for item in range(len(rows[0])):
        alone = part(new, slice(item, item + 1))
        assert_close(each[item : item + 1], sums.with_rows(*alone).attend(alone[0], alone[2]))


def test_float32_rows_are_summed_in_float64() -> None:
    """A float32 sum of 200,000 thirds is wrong in the fifth digit."""
    rows = np.full((1000, 1, 1), 1 / 3, dtype=np.float32)
    chunk = AttentionSums.of_rows("frobenius", rows, rows, rows)
    total = sum((chunk for _ in range(199)), start=chunk)
    assert total.key_value.dtype == np.float64
    assert total.count == 200_000
    assert_close(total.key[0], np.array([200_000 * float(np.float32(1 / 3))]), tolerance=1e-7)


def test_sums_of_different_norms_cannot_be_combined() -> None:
    with pytest.raises(SumsError, match=r"row normalisation .* cannot be combined with frobenius"):
        AttentionSums.empty("row", 1, 2) + AttentionSums.empty("frobenius", 1, 2)
    with pytest.raises(SumsError, match=r"shape \(1, 2, 2\) cannot be combined with row and \(3, 2, 2\)"):
        AttentionSums.empty("row", 1, 2) + AttentionSums.empty("row", 3, 2)


def test_more_rows_than_the_sums_include_cannot_be_removed() -> None:
    rows = np.ones((2, 1, 1))
    with pytest.raises(SumsError, match="2 rows cannot be removed from sums over 0"):
        AttentionSums.empty("frobenius", 1, 1) - AttentionSums.of_rows("frobenius", rows, rows, rows)


@pytest.mark.parametrize("normalization", ["row", "frobenius"])
def test_attention_needs_sums_over_a_row(normalization: Any) -> None:
    rows = np.ones((2, 1, 1))
    with pytest.raises(SumsError, match="over at least one row, these are over none"):
        AttentionSums.empty(normalization, 1, 1).attend(rows, rows)


def test_queries_that_are_all_zero_attend_to_nothing() -> None:
    zero, value = np.zeros((3, 1, 2)), np.arange(6.0).reshape(3, 1, 2)
    sums = AttentionSums.of_rows("frobenius", zero, zero, value)
    np.testing.assert_array_equal(sums.attend(zero, value), value[:, 0])
