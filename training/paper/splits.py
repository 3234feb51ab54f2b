"""The splits of the tables: stored, random, and fresh ones that no recipe has seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from training.data.labelled import TEST, TRAIN, UNUSED, VALIDATION
from training.data.splits import per_class_split, random_split

if TYPE_CHECKING:
    from training.data.labelled import LabelledGraph

QUARTER = 0.25
FRESH_STREAM = int.from_bytes(b"fresh")
"""Part of the seed of fresh splits, so that none equals a split of another table."""
Load = Callable[[int], "LabelledGraph"]
"""Loads the data for a run, by its number from 0."""


def stored_split(dataset: str, split: int | None) -> Load:
    """The same stored split for all runs; None: another one for each."""
    return lambda run: _load(dataset, split=run if split is None else split, seed=run)


def random_split_of(dataset: str, share: float) -> Load:
    """A share of all nodes trains, a quarter validates, a quarter tests, at random."""

    def load(run: int) -> LabelledGraph:
        data = _load(dataset)
        return replace(data, split=random_split(data.labels >= 0, run, (share, QUARTER, QUARTER)))

    return load


def fresh_split(dataset: str) -> Load:
    """Splits like those of the data set, for which no setting was chosen: 20 nodes per class if it has such splits, else the
    shares of its first stored split.
    """

    def load(run: int) -> LabelledGraph:
        data = _load(dataset)
        if dataset.endswith("-random"):
            return replace(data, split=per_class_split(data.labels, FRESH_STREAM + run))
        known = data.split != UNUSED
        shares = [float((data.split == part).sum() / known.sum()) for part in (TRAIN, VALIDATION, TEST)]
        return replace(data, split=random_split(known, run, (shares[0], shares[1], shares[2]), (FRESH_STREAM,)))

    return load


def _load(dataset: str, **options: Any) -> LabelledGraph:
    from training.data import datasets  # here: the help must not wait for torch

    return datasets.load(dataset, **options)
