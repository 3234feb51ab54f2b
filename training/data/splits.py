"""Who trains, who validates, who tests."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from training.data.labelled import TEST, TRAIN, UNUSED, VALIDATION

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


def steady_split(keys: NDArray[Any], labelled: NDArray[np.bool_], seed: int, shares: Shares = HALF) -> Split:
    """Every node draws its own part, by a hash of its key: in data that has grown, a node has the part that it had before.

    So what was held out from one version is held out from the next, and the two can be compared on it. The shares are kept
    on average; one node at least trains and one validates.

    Args:
        keys: the nodes' ids, or their numbers.
    """
    chance = _chances(keys, seed)
    split = np.digitize(chance, np.cumsum(shares)[:2]).astype(np.int8)
    nodes = np.flatnonzero(labelled)
    ranked = nodes[np.argsort(chance[nodes], kind="stable")]
    for part, node in ((TRAIN, ranked[:1]), (VALIDATION, ranked[-1:])):
        if not (split[nodes] == part).any():
            split[node] = part
    return np.where(labelled, split, UNUSED).astype(np.int8)


def _chances(keys: NDArray[Any], seed: int) -> NDArray[np.float64]:
    """A number in [0, 1) for every key, the same whatever else is there."""
    salt = seed.to_bytes(8, "little")
    texts = (str(key).encode() for key in keys.tolist()) if keys.dtype.kind == "i" else iter(keys.tolist())
    digests = b"".join(hashlib.blake2b(text, digest_size=8, salt=salt).digest() for text in texts)
    return np.frombuffer(digests, dtype="<u8") / 2.0**64


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
