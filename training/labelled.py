"""A graph with labels and a split: what training needs of a data set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sgformer import Graph

TRAIN, VALIDATION, TEST = 0, 1, 2


@dataclass(frozen=True)
class LabelledGraph:
    graph: Graph
    labels: NDArray[np.int64]
    """One class per node."""
    split: NDArray[np.int8]
    """TRAIN, VALIDATION or TEST per node."""
    class_names: tuple[str, ...]

    def nodes(self, part: int) -> NDArray[np.int64]:
        return np.flatnonzero(self.split == part)


def random_split(count: int, seed: int, shares: tuple[float, float] = (0.5, 0.25)) -> NDArray[np.int8]:
    """Shuffled nodes: the first share trains, the second validates, the rest tests."""
    split = np.full(count, TEST, dtype=np.int8)
    order = np.random.default_rng(seed).permutation(count)
    first, second = (round(count * share) for share in (shares[0], shares[0] + shares[1]))
    split[order[:first]] = TRAIN
    split[order[first:second]] = VALIDATION
    return split
