"""Who trains, who validates, who tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from training.labelled import TEST, TRAIN, UNUSED, VALIDATION

Split = NDArray[np.int8]


Shares = tuple[float, float, float]
"""Of the labelled nodes: those that train, validate, test."""
HALF: Shares = (0.5, 0.25, 0.25)


def random_split(labelled: NDArray[np.bool_], seed: int, shares: Shares = HALF) -> Split:
    """The labelled nodes, shuffled and dealt by shares: one node at least trains and one validates; the rest is unused."""
    nodes = np.flatnonzero(labelled)
    order = np.random.default_rng(seed).permutation(nodes)
    train = max(1, round(len(nodes) * shares[0]))
    validation = max(train + 1, round(len(nodes) * (shares[0] + shares[1])))
    test = round(len(nodes) * sum(shares))
    return from_nodes(len(labelled), order[:train], order[train:validation], order[validation:test])


def per_class_split(
    labels: NDArray[np.int64], seed: int, per_class: int = 20, validation: int = 500, test: int = 1000
) -> Split:
    """`per_class` random nodes of every class train; of the others some validate and some test.

    Drawn with torch's generator in the order of the authors' code, so that their `--seed` gives the same split here.
    """
    generator = torch.Generator().manual_seed(seed)
    shuffled = [_shuffled(np.flatnonzero(labels == one), generator) for one in range(int(labels.max()) + 1)]
    rest = _shuffled(np.concatenate([nodes[per_class:] for nodes in shuffled]), generator)
    train = np.concatenate([nodes[:per_class] for nodes in shuffled])
    return from_nodes(len(labels), train, rest[:validation], rest[validation : validation + test])


def from_nodes(count: int, train: Any, validation: Any, test: Any) -> Split:
    split = np.full(count, UNUSED, dtype=np.int8)
    for nodes, part in ((train, TRAIN), (validation, VALIDATION), (test, TEST)):
        split[nodes] = part
    return split


def _shuffled(nodes: NDArray[np.int64], generator: torch.Generator) -> NDArray[np.int64]:
    order: NDArray[np.int64] = torch.randperm(len(nodes), generator=generator).numpy()
    return nodes[order]
