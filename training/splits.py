"""Who trains, who validates, who tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.labelled import TEST, TRAIN, UNUSED, VALIDATION

Split = NDArray[np.int8]


def random_split(labelled: NDArray[np.bool_], seed: int, shares: tuple[float, float] = (0.5, 0.25)) -> Split:
    """The labelled nodes, shuffled: the first share trains (one node at least), the second validates, the rest tests."""
    nodes = np.flatnonzero(labelled)
    order = np.random.default_rng(seed).permutation(nodes)
    first = max(1, round(len(nodes) * shares[0]))
    second = max(first + 1, round(len(nodes) * (shares[0] + shares[1])))
    return from_nodes(len(labelled), order[:first], order[first:second], order[second:])


def per_class_split(
    labels: NDArray[np.int64], seed: int, per_class: int = 20, validation: int = 500, test: int = 1000
) -> Split:
    """`per_class` random nodes of every class train; of the others some validate and some test (the authors' commands)."""
    rng = np.random.default_rng(seed)
    classes = range(int(labels.max()) + 1)
    train = np.concatenate([rng.permutation(np.flatnonzero(labels == one))[:per_class] for one in classes])
    rest = rng.permutation(np.setdiff1d(np.flatnonzero(labels >= 0), train))
    return from_nodes(len(labels), train, rest[:validation], rest[validation : validation + test])


def from_nodes(count: int, train: Any, validation: Any, test: Any) -> Split:
    split = np.full(count, UNUSED, dtype=np.int8)
    for nodes, part in ((train, TRAIN), (validation, VALIDATION), (test, TEST)):
        split[nodes] = part
    return split


def with_fewer_labels(split: Split, share: float, seed: int) -> Split:
    """The same split with only a share of its training nodes; the others become unused."""
    train = np.flatnonzero(split == TRAIN)
    kept = np.random.default_rng(seed).permutation(train)[: max(1, round(len(train) * share))]
    fewer = split.copy()
    fewer[np.setdiff1d(train, kept)] = UNUSED
    return fewer
