"""Inverted lists: an index that groups rows around centroids. A search reads the lists of the nearest centroids.

The index is plain arrays, which are safe to map and to verify. Centroids come from k-means on a sample of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgformer.arrays.operations import Indices, expand_runs
from sgformer.nearest.scan import BLOCK_ROWS, Nearest, largest, nearest, unit_rows

SAMPLES_PER_LIST, ITERATIONS = 32, 6
"""Of k-means: rows of its sample per list, and iterations."""
LISTS_PER_ROOT = 1
"""Number of lists, divided by the square root of the number of rows. With twice as many lists, a query takes half the time,
and the index 2.4 times as long to build."""
PROBES = (8, 16, 32, 64, 128)
"""Numbers of lists that a search may read; `fewest_probes` chooses one."""
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
        for _ in range(ITERATIONS):
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

    def fewest_probes(self, rows: NDArray[Any]) -> tuple[int, float] | None:
        """The smallest number of probes that reaches MIN_RECALL, and its recall; None if no number reaches it.

        The recall is measured for evenly spaced rows, against an exact scan.
        """
        queries, cutoffs = measured_queries(rows)
        for probes in PROBES:
            if probes < len(self.centroids) and (recall := self.measure(rows, probes, queries, cutoffs)) >= MIN_RECALL:
                return probes, recall
        return None

    def measure(self, rows: NDArray[Any], probes: int, queries: NDArray[Any], cutoffs: NDArray[Any]) -> float:
        """The recall: the share of the nearest rows of the queries that a search finds.

        A row counts if its similarity reaches the cutoff of the query, whatever its number is: equal rows are equally near.
        """
        similarities = [self.nearest(rows, query[None], MEASURED_K, probes).similarities for query in queries]
        hits = sum(int((values >= cutoff - 1e-6).sum()) for values, cutoff in zip(similarities, cutoffs, strict=True))
        return hits / (len(queries) * MEASURED_K)


def measured_queries(rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Evenly spaced rows, and for each the similarity of its MEASURED_K-th nearest row (the cutoff)."""
    count = min(MEASURED_QUERIES, len(rows))
    queries = np.asarray(rows[np.arange(count) * len(rows) // count])
    return queries, nearest(rows, queries, MEASURED_K).similarities[:, -1]


def _owners(rows: NDArray[Any], centroids: NDArray[Any]) -> Indices:
    """The nearest centroid of every row."""
    owners = np.empty(len(rows), dtype=np.int64)
    for start in range(0, len(rows), BLOCK_ROWS):
        owners[start : start + BLOCK_ROWS] = (rows[start : start + BLOCK_ROWS] @ centroids.T).argmax(axis=1)
    return owners
