"""Splits of the labelled nodes into training, validation and test nodes."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.data.labelled import TEST, TRAIN, UNUSED, VALIDATION

Split = NDArray[np.int8]
Shares = tuple[float, float, float]
"""The shares of training, validation and test nodes among the labelled nodes."""
HALF: Shares = (0.5, 0.25, 0.25)
SPLIT_STREAM = int.from_bytes(b"split")
"""Part of the seed of a random split, so that no data set was made with the same random numbers. The classes of minesweeper
were drawn with numpy's generator and seed 0: with the same seed alone, all nodes of one class would train."""
CHUNK_KEYS = 1 << 16


def random_split(
    labelled: NDArray[np.bool_], seed: int, shares: Shares = HALF, stream: tuple[int, ...] = (SPLIT_STREAM,)
) -> Split:
    """A random split with at least one training and one validation node. Shares may sum to less than 1.

    Args:
        stream: the rest of the generator's seed.
    """
    nodes = np.flatnonzero(labelled)
    order = np.random.default_rng((seed, *stream)).permutation(nodes)
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
    fractions, split = _hash_fractions(keys, seed), parts_by_rule(keys, seed, shares)
    nodes = np.flatnonzero(labelled)
    ranked = nodes[np.argsort(fractions[nodes], kind="stable")]
    for part, node in ((TRAIN, ranked[:1]), (VALIDATION, ranked[-1:])):
        if not (split[nodes] == part).any():
            split[node] = part
    return np.where(labelled, split, UNUSED).astype(np.int8)


def parts_by_rule(keys: NDArray[Any], seed: int, shares: Shares) -> Split:
    """The part of each key by its hash: the rule of `steady_split`."""
    return np.digitize(_hash_fractions(keys, seed), np.cumsum(shares)[:2]).astype(np.int8)


def describe_rule(shares: Shares, seed: int, *, by_id: bool) -> str:
    """The rule of a steady split as text, for the manifest."""
    return f"{'/'.join(f'{share:g}' for share in shares)}, seed {seed}, by {'id' if by_id else 'row'}"


def parse_rule(text: object) -> tuple[Shares, int] | None:
    """The shares and the seed of `describe_rule`; None if this is no such text."""
    match = re.fullmatch(r"([\d.e-]+)/([\d.e-]+)/([\d.e-]+), seed (\d+), by (?:id|row)", str(text))
    return None if match is None else ((float(match[1]), float(match[2]), float(match[3])), int(match[4]))


def _hash_fractions(keys: NDArray[Any], seed: int) -> NDArray[np.float64]:
    """A number in [0, 1) for every key, by its hash."""
    salt, is_number = seed.to_bytes(8, "little"), keys.dtype.kind == "i"
    digests = bytearray()
    for start in range(0, len(keys), CHUNK_KEYS):  # bounds the memory
        chunk = keys[start : start + CHUNK_KEYS].tolist()
        texts = (str(key).encode() for key in chunk) if is_number else iter(chunk)
        digests += b"".join(hashlib.blake2b(text, digest_size=8, salt=salt).digest() for text in texts)
    return np.frombuffer(digests, dtype="<u8") / 2.0**64


def per_class_split(
    labels: NDArray[np.int64], seed: int, per_class: int = 20, validation: int = 500, test: int = 1000
) -> Split:
    """`per_class` random training nodes of every class; `validation` and `test` nodes are drawn from the others.

    Uses torch's generator in the order of the authors' code, so that their `--seed` gives the same split here.
    """
    import torch  # here: the command line reads this module, and its help must not wait for torch

    generator = torch.Generator().manual_seed(seed)

    def shuffle(nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.asarray(nodes[torch.randperm(len(nodes), generator=generator).numpy()])

    shuffled = [shuffle(np.flatnonzero(labels == label)) for label in range(int(labels.max()) + 1)]
    rest = shuffle(np.concatenate([nodes[per_class:] for nodes in shuffled]))
    train = np.concatenate([nodes[:per_class] for nodes in shuffled])
    return from_nodes(len(labels), train, rest[:validation], rest[validation : validation + test])


def from_nodes(count: int, train: Any, validation: Any, test: Any) -> Split:
    split = np.full(count, UNUSED, dtype=np.int8)
    for nodes, part in ((train, TRAIN), (validation, VALIDATION), (test, TEST)):
        split[nodes] = part
    return split
