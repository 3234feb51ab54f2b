"""The exact scan against sorting all similarities, and the recall of inverted lists against the exact scan."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgformer.nearest import lists, scan
from sgformer.nearest.lists import InvertedLists, measured_queries
from sgformer.nearest.scan import nearest, unit_rows


def rows_of(count: int, width: int = 8, seed: int = 0) -> np.ndarray:
    return unit_rows(np.random.default_rng(seed).normal(size=(count, width)))


@given(st.integers(1, 60), st.integers(1, 70), st.integers(1, 25), st.integers(0, 99))
def test_the_scan_equals_sorting_all_similarities(count: int, k: int, block: int, seed: int) -> None:
    rows, queries = rows_of(count, seed=seed), rows_of(3, seed=seed + 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "BLOCK_ROWS", block)
        found = nearest(rows, queries, k)
    similarities = queries.astype(np.float64) @ rows.T.astype(np.float64)
    expected = np.argsort(-similarities, axis=1)[:, :k]
    assert found.rows.shape == (3, min(k, count))
    np.testing.assert_allclose(found.similarities, np.take_along_axis(similarities, expected, axis=1), atol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(similarities, found.rows, axis=1), found.similarities, atol=1e-6)


def test_of_equally_near_rows_the_first_comes_first_and_zeros_are_near_nothing() -> None:
    rows = unit_rows(np.array([[0, 0], [1, 0], [2, 0], [0, 1]]))
    found = nearest(rows, rows[1:2], 4)
    assert found.rows.tolist() == [[1, 2, 0, 3]]
    assert found.similarities.tolist() == [[1, 1, 0, 0]]


def test_rows_may_have_numbers_of_their_own() -> None:
    rows = rows_of(20)
    assert nearest(rows[5:9], rows[6:7], 1, np.arange(5, 9)).rows.tolist() == [[6]]


def test_lists_have_every_row_once_and_all_probes_are_exact() -> None:
    rows = rows_of(500)
    index = InvertedLists.build(rows)
    assert sorted(index.order) == list(range(500))
    assert index.starts[0] == 0
    assert index.starts[-1] == 500
    exact, found = nearest(rows, rows[7:8], 10), index.nearest(rows, rows[7:8], 10, len(index.centroids))
    np.testing.assert_array_equal(found.rows, exact.rows)
    assert index.measure(rows, len(index.centroids), *measured_queries(rows)) == 1


def test_the_measured_recall_is_that_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(2000, width=16)
    index = InvertedLists.build(rows)
    monkeypatch.setattr(lists, "MEASURED_QUERIES", 2000)
    exact = nearest(rows, rows, 10)
    hits = [len(set(index.nearest(rows, rows[row : row + 1], 10, 8).rows[0]) & set(exact.rows[row])) for row in range(2000)]
    recall = index.measure(rows, 8, *measured_queries(rows))
    assert recall == pytest.approx(np.mean(hits) / 10, abs=1e-3)
    assert 0.3 < recall < 0.99, "an easy case would not show a mistake"


def test_the_fewest_probes_that_reach_the_recall_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    clustered = unit_rows(rng.normal(size=(20, 16))[rng.integers(0, 20, 3000)] * 4 + rng.normal(size=(3000, 16)))
    index = InvertedLists.build(clustered)
    probes, recall = index.fewest_probes(clustered) or (0, 0.0)
    queries = measured_queries(clustered)
    assert recall == index.measure(clustered, probes, *queries) >= lists.MIN_RECALL
    assert probes == lists.PROBES[0] or index.measure(clustered, probes // 2, *queries) < lists.MIN_RECALL
    monkeypatch.setattr(lists, "PROBES", (1,))
    assert index.fewest_probes(clustered) is None
