"""Splits of the labelled nodes into training, validation and test nodes."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from training.data.labelled import TEST, TRAIN, UNUSED, VALIDATION

Split = NDArray[np.int8]
Shares = tuple[float, float, float]
"""The shares of training, validation and test nodes among the labelled nodes."""
HALF: Shares = (0.5, 0.25, 0.25)


def random_split(labelled: NDArray[np.bool_], seed: int, shares: Shares = HALF) -> Split:
    """A random split with at least one training and one validation node. Shares may sum to less than 1."""
    nodes = np.flatnonzero(labelled)
    order = np.random.default_rng(seed).permutation(nodes)
    train = max(1, round(len(nodes) * shares[0]))
    validation = max(train + 1, round(len(nodes) * (shares[0] + shares[1])))
    test = round(len(nodes) * sum(shares))
    return from_nodes(len(labelled), order[:train], order[train:validation], order[validation:test])


def steady_split(keys: NDArray[Any], labelled: NDArray[np.bool_], seed: int, shares: Shares = HALF) -> Split:
    """A split in which each node's part depends only on its key and the seed, so that it stays when the data grows.

    Nodes that are held out from one version are then held out from the next, and the two can be compared on them. The shares
    hold on average. There is at least one training and one validation node.

    Args:
        keys: the ids of the nodes, or their row numbers.
    """
    fractions = _hash_fractions(keys, seed)
    split = np.digitize(fractions, np.cumsum(shares)[:2]).astype(np.int8)
    nodes = np.flatnonzero(labelled)
    ranked = nodes[np.argsort(fractions[nodes], kind="stable")]
    for part, node in ((TRAIN, ranked[:1]), (VALIDATION, ranked[-1:])):
        if not (split[nodes] == part).any():
            split[node] = part
    return np.where(labelled, split, UNUSED).astype(np.int8)


def _hash_fractions(keys: NDArray[Any], seed: int) -> NDArray[np.float64]:
    """A number in [0, 1) for every key, by its hash."""
    salt = seed.to_bytes(8, "little")
    texts = (str(key).encode() for key in keys.tolist()) if keys.dtype.kind == "i" else iter(keys.tolist())
    digests = b"".join(hashlib.blake2b(text, digest_size=8, salt=salt).digest() for text in texts)
    return np.frombuffer(digests, dtype="<u8") / 2.0**64


def per_class_split(
    labels: NDArray[np.int64], seed: int, per_class: int = 20, validation: int = 500, test: int = 1000
) -> Split:
    """`per_class` random nodes of every class train; of the others `validation` validate and `test` test.

    Uses torch's generator in the order of the authors' code, so that their `--seed` gives the same split here.
    """
    generator = torch.Generator().manual_seed(seed)
    shuffled = [_shuffled(np.flatnonzero(labels == label), generator) for label in range(int(labels.max()) + 1)]
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
