"""Histograms of columns of numbers, and their distance from a reference: PSI and KS (docs/drift.md).

Counts over the same bins can be added: over samples, processes and machines.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
"""(columns, bins)."""
DECILES = np.arange(1, 10) / 10
MIN_PSI = 0.2
"""The smallest PSI that counts as drift, however large the sample is: the usual limit of a significant shift."""
FALSE_ALARMS = 1e-3
"""The probability that a sample of the reference itself exceeds the threshold in any of its columns."""


@dataclass(frozen=True)
class Histograms:
    """The bins of every column: bin b holds the values above edge b - 1, up to and including edge b."""

    edges: NDArray[np.float32]
    """(columns, bins - 1), ascending. Equal edges make empty bins, which have no effect."""

    @classmethod
    def of_deciles(cls, values: NDArray[Any]) -> Histograms:
        """Ten bins between the deciles of a sample (rows, columns).

        If a tenth of a column has its smallest value, smaller values get a bin of their own, and likewise above the largest
        value: a new value is then seen even in a column that was constant.
        """
        ordered = np.sort(values.astype(np.float32), axis=0)
        deciles = ordered[np.ceil(DECILES * len(ordered)).astype(np.int64) - 1]
        infinity = np.float32(np.inf)
        below = np.where(deciles[0] == ordered[0], np.nextafter(ordered[0], -infinity), -infinity)
        above = np.where(deciles[-1] == ordered[-1], ordered[-1], infinity)
        return cls(np.ascontiguousarray(np.concatenate([below[None], deciles, above[None]]).T))

    @classmethod
    def of_classes(cls, count: int) -> Histograms:
        """One column, with a bin for each of the numbers 0 to count - 1."""
        return cls(np.arange(count - 1, dtype=np.float32)[None])

    @property
    def shape(self) -> tuple[int, int]:
        return self.edges.shape[0], self.edges.shape[1] + 1

    def count(self, values: NDArray[Any]) -> Counts:
        """The counts of a sample (rows, columns), compared as float32 like stored features: 0.7 is not above 0.7."""
        columns, bins = self.shape
        rows = values.astype(np.float32)[:, :, None]
        positions = (rows > self.edges).sum(axis=2) + np.arange(columns) * bins
        return np.bincount(positions.ravel(), minlength=columns * bins).reshape(columns, bins)


def psi_by_bin(observed: Counts, reference: Counts) -> NDArray[np.float64]:
    """The contribution of every bin to the population stability index of its column: (q - p) ln(q / p).

    p and q are the shares of the reference and of the sample. Both first get as many extra values as there are bins,
    distributed as all values together: an empty bin then has a logarithm, and does not make a small sample look different.
    """
    bins, both = reference.shape[1], observed + reference
    extra = bins * both / np.maximum(both.sum(axis=1, keepdims=True), 1)
    p, q = ((counts + extra) / (counts.sum(axis=1, keepdims=True) + bins) for counts in (reference, observed))
    return np.asarray((q - p) * np.log(np.where(both > 0, q / np.where(both > 0, p, 1), 1)))


def ks(observed: Counts, reference: Counts) -> NDArray[np.float64]:
    """The largest difference of the two cumulative distributions at an edge, per column: from 0 to 1."""
    shares = [counts / np.maximum(counts.sum(axis=1, keepdims=True), 1) for counts in (observed, reference)]
    return np.asarray(np.abs((shares[0] - shares[1]).cumsum(axis=1)).max(axis=1))


def psi_threshold(observed: Counts, reference: Counts) -> NDArray[np.float64]:
    """The threshold of each column: a larger PSI is drift.

    For a sample of n and a reference of m values from the same distribution, PSI / (1/n + 1/m) has a chi-square distribution
    with as many degrees of freedom as there are bins in use, less one. FALSE_ALARMS is divided by the number of columns
    (Bonferroni), so that more columns do not cause more false alarms.
    """
    sizes = [np.maximum(counts.sum(axis=1), 1) for counts in (observed, reference)]
    freedom = np.maximum((observed + reference > 0).sum(axis=1) - 1, 1)
    quantile = chi_square_quantile(1 - FALSE_ALARMS / len(reference), freedom)
    return np.asarray(np.maximum(MIN_PSI, (1 / sizes[0] + 1 / sizes[1]) * quantile))


def chi_square_quantile(probability: float, freedom: NDArray[np.int64]) -> NDArray[np.float64]:
    """By the approximation of Wilson and Hilferty, which is 14 % too large for one degree of freedom, and 2 % for ten."""
    spread = 2 / (9 * freedom)
    return np.asarray(freedom * (1 - spread + NormalDist().inv_cdf(probability) * np.sqrt(spread)) ** 3)
