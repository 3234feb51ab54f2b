"""Inverted lists: an index that groups rows around centroids. A search reads the lists of the nearest centroids.

The index is plain arrays, which are safe to map and to verify. Its recall is measured. Centroids come from k-means on a
sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgformer.arrays.operations import Indices, expand_runs
from sgformer.nearest.scan import BLOCK_ROWS, Nearest, largest, nearest, unit_rows

SAMPLES_PER_LIST, ROUNDS = 32, 6
"""Of k-means: the size of its sample, and its iterations."""
LISTS_PER_ROOT = 1
"""Number of lists, divided by the square root of the number of rows. Twice as many halve the time of a query, and take 2.4
times as long to build."""
PROBES = (8, 16, 32, 64, 128)
"""Numbers of lists that a search may read; `tuned` chooses one."""
MIN_RECALL = 0.995
MEASURED_QUERIES, MEASURED_K = 128, 10


@dataclass(frozen=True)
class InvertedLists:
    centroids: NDArray[Any]
    """(lists, width), unit rows."""
    starts: Indices
    """(lists + 1,): where each list begins in `order`."""
    order: NDArray[Any]
    """All rows, list by list, ascending within a list."""

    @classmethod
    def build(cls, rows: NDArray[Any], num_lists: int | None = None) -> InvertedLists:
        """The same rows give the same lists."""
        rng = np.random.default_rng(0)
        num_lists = num_lists or max(1, round(LISTS_PER_ROOT * len(rows) ** 0.5))
        count = min(len(rows), SAMPLES_PER_LIST * num_lists)
        sample = np.asarray(rows[np.sort(rng.choice(len(rows), count, replace=False))])
        centroids = sample[rng.choice(count, num_lists, replace=False)].copy()
        for _ in range(ROUNDS):
            owners = _owners(sample, centroids)
            order = np.argsort(owners, kind="stable")
            present, begins = np.unique(owners[order], return_index=True)
            centroids[present] = unit_rows(np.add.reduceat(sample[order], begins, axis=0))
        owners = _owners(rows, centroids)
        starts = np.append(0, np.cumsum(np.bincount(owners, minlength=num_lists)))
        return cls(centroids, starts, np.argsort(owners, kind="stable"))

    def nearest(self, rows: NDArray[Any], query: NDArray[Any], k: int, probes: int) -> Nearest:
        """Approximately the k nearest of the rows to one unit query (1, width)."""
        lists = np.sort(largest(query @ self.centroids.T, probes)[0][0])
        begins, ends = self.starts[lists], self.starts[lists + 1]
        candidates = np.asarray(self.order[expand_runs(begins, ends - begins)], dtype=np.int64)
        return nearest(rows.take(candidates, axis=0), query, k, candidates)

    def tuned(self, rows: NDArray[Any]) -> tuple[int, float] | None:
        """The fewest probes that reach MIN_RECALL, and their recall; None if even the most do not.

        The recall is that of the nearest 10, of evenly spaced rows, against an exact scan.
        """
        queries, least = measured_queries(rows)
        for probes in PROBES:
            if probes < len(self.centroids) and (recall := self.measure(rows, probes, queries, least)) >= MIN_RECALL:
                return probes, recall
        return None

    def measure(self, rows: NDArray[Any], probes: int, queries: NDArray[Any], least: NDArray[Any]) -> float:
        """The recall: the share of the nearest rows of the queries that are found.

        A row counts as found by its similarity (at least `least`), not by its number: equal rows are equally near.
        """
        found = [self.nearest(rows, query[None], MEASURED_K, probes).similarities for query in queries]
        hits = sum(int((part >= limit - 1e-6).sum()) for part, limit in zip(found, least, strict=True))
        return hits / (len(queries) * MEASURED_K)


def measured_queries(rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Evenly spaced rows, and the similarity of the last of the nearest rows of each."""
    count = min(MEASURED_QUERIES, len(rows))
    queries = np.asarray(rows[np.arange(count) * len(rows) // count])
    return queries, nearest(rows, queries, MEASURED_K).similarities[:, -1]


def _owners(rows: NDArray[Any], centroids: NDArray[Any]) -> Indices:
    """The nearest centroid of every row."""
    owners = np.empty(len(rows), dtype=np.int64)
    for start in range(0, len(rows), BLOCK_ROWS):
        owners[start : start + BLOCK_ROWS] = (rows[start : start + BLOCK_ROWS] @ centroids.T).argmax(axis=1)
    return owners
