"""PSI and KS of histograms against their definitions, and thresholds against samples of the reference itself."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2, ks_2samp

from sgformer.histograms import MIN_PSI, Histograms, chi_square_quantile, ks, psi_by_bin, psi_threshold

COUNTS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=2, max_size=8).filter(
    lambda pairs: all(sum(side) for side in zip(*pairs, strict=True))
)


@given(COUNTS)
def test_psi_is_its_definition(pairs: list[tuple[int, int]]) -> None:
    observed, reference = (list(side) for side in zip(*pairs, strict=True))
    bins, total = len(pairs), sum(observed) + sum(reference)
    expected = 0.0
    for here, there in pairs:
        if here + there:
            more = bins * (here + there) / total
            q, p = (here + more) / (sum(observed) + bins), (there + more) / (sum(reference) + bins)
            expected += (q - p) * math.log(q / p)
    value = psi_by_bin(np.array([observed]), np.array([reference])).sum()
    assert value == pytest.approx(expected, abs=1e-12)
    assert value >= 0


def test_psi_of_large_samples_is_that_of_their_shares_and_equal_shares_have_none() -> None:
    observed, reference = np.array([[3, 7]]) * 10**6, np.array([[5, 5]]) * 10**6
    assert psi_by_bin(observed, reference).sum() == pytest.approx(0.2 * math.log(7 / 3), rel=1e-5)
    assert (psi_by_bin(reference // 1000, reference) == 0).all()


@given(st.integers(0, 10**6), st.integers(5, 200), st.integers(5, 200))
def test_ks_of_counts_is_that_of_values_which_are_edges(seed: int, samples: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    values, others = rng.integers(0, 6, size=(samples, 1)), rng.integers(0, 5, size=(size, 1))
    bins = Histograms(np.arange(6, dtype=np.float32)[None])
    expected = ks_2samp(values[:, 0], others[:, 0], method="asymp").statistic
    assert ks(bins.count(values), bins.count(others))[0] == pytest.approx(expected, abs=1e-12)


@given(st.integers(0, 10**6), st.integers(1, 300))
def test_counts_add_up_and_every_value_is_in_the_bin_of_its_edges(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    values = np.stack([rng.normal(size=size), rng.integers(0, 3, size=size), np.full(size, 7.0)], axis=1)
    bins = Histograms.of_deciles(values)
    counts = bins.count(values)
    assert counts.shape == bins.shape
    assert (counts.sum(axis=1) == size).all()
    assert (counts == bins.count(values[: size // 2]) + bins.count(values[size // 2 :])).all()
    for column, edges in enumerate(bins.edges):
        places = np.searchsorted(edges, values[:, column].astype(np.float32))
        assert (np.bincount(places, minlength=counts.shape[1]) == counts[column]).all()


def test_a_request_in_float64_is_in_the_bin_of_the_equal_feature_in_float32() -> None:
    stored = np.array([[0.7], [0.7], [0.3]], dtype=np.float32)
    bins = Histograms.of_deciles(stored)
    assert (bins.count(np.array([[0.7], [0.7], [0.3]])) == bins.count(stored)).all()


@pytest.mark.parametrize("other", [6.9, 7.1])
def test_another_value_in_a_constant_column_is_drift(other: float) -> None:
    bins = Histograms.of_deciles(np.full((100, 1), 7.0))
    reference, observed = bins.count(np.full((100, 1), 7.0)), bins.count(np.full((50, 1), other))
    assert (psi_by_bin(observed, reference).sum(axis=1) > psi_threshold(observed, reference)).all()


@pytest.mark.parametrize("freedom", [1, 2, 5, 11])
def test_the_quantile_is_that_of_chi_square_or_a_little_larger(freedom: int) -> None:
    for probability in (0.99, 0.999, 1 - 1e-3 / 512):
        exact = chi2.ppf(probability, freedom)
        assert exact * 0.98 <= chi_square_quantile(probability, np.array([freedom]))[0] <= exact * 1.15


DRAWS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "normal": lambda rng, size: rng.normal(size=(size, 40)),
    "heavy tail": lambda rng, size: rng.pareto(1, size=(size, 40)),
    "rare": lambda rng, size: rng.random((size, 40)) < np.linspace(0.0005, 0.05, 40),
    "mostly zero": lambda rng, size: np.where(rng.random((size, 40)) < 0.7, 0, rng.integers(1, 17, size=(size, 40))),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("size", [10, 100, 1000])
def test_samples_of_the_reference_raise_no_alarm_and_a_shift_does(
    draw: Callable[[np.random.Generator, int], np.ndarray], size: int
) -> None:
    rng = np.random.default_rng(size)
    sample = draw(rng, 1000)
    bins = Histograms.of_deciles(sample)
    reference = bins.count(sample)
    for _ in range(30):
        observed = bins.count(draw(rng, size))
        assert (psi_by_bin(observed, reference).sum(axis=1) <= psi_threshold(observed, reference)).all()
    shifted = draw(rng, max(size, 100)).astype(np.float64)
    shifted[:, 3] += 5
    observed = bins.count(shifted)
    assert np.flatnonzero(psi_by_bin(observed, reference).sum(axis=1) > psi_threshold(observed, reference)).tolist() == [3]


def test_the_threshold_falls_with_the_sample_to_its_minimum() -> None:
    reference = np.full((1, 10), 1000)
    thresholds = [psi_threshold(np.full((1, 10), size), reference)[0] for size in (1, 10, 100, 1000)]
    assert thresholds == sorted(thresholds, reverse=True)
    assert thresholds[-1] == MIN_PSI < thresholds[0]
