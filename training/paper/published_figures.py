"""The published figures that the tables compare with: test accuracy in per cent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One row of the table of medium-sized graphs. The recipe has the same name as the data set."""

    dataset: str
    paper: float | None
    authors: float | None
    """The result of the authors' commands on the same kind of machine and split; None if they were not run."""
    split: int | None = None
    """The split of all runs; None: the stored splits, one per seed."""


MEDIUM = (
    Row("cora", 84.5, None),
    Row("citeseer", 72.6, None),
    Row("pubmed", 80.3, None),
    Row("cora-random", None, 82.5, split=0),  # the authors run all seeds on one random split
    Row("citeseer-random", None, 67.4, split=0),
    Row("pubmed-random", None, 79.1, split=0),
    Row("actor", 37.9, None),
    Row("squirrel", 41.8, None),
    Row("chameleon", 44.9, 43.6),
    Row("deezer", 67.1, None),
)
LABEL_SHARES = (0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.04, 0.03, 0.02, 0.01)
LABELS: dict[str, tuple[float, ...]] = {
    "cora": (89.22, 88.85, 87.85, 87.81, 86.11, 82.05, 81.40, 77.39, 69.84, 65.14),
    "pubmed": (90.52, 89.90, 89.33, 88.53, 86.89, 86.24, 85.83, 85.01, 84.29, 82.93),
    "chameleon": (47.98, 43.97, 43.19, 40.94, 39.60, 38.25, 37.82, 35.53, 32.72, 31.62),
}
"""By data set, for each share of training nodes in `LABEL_SHARES`; a quarter of the nodes validates, a quarter tests."""

ALPHA: dict[str, dict[float, float]] = {
    "cora": {0.8: 89.22, 0.5: 88.74, 0.2: 75.42, 0.0: 75.57},
    "actor": {0.8: 35.64, 0.5: 37.36, 0.2: 37.16, 0.0: 36.75},
}
"""By data set and share `alpha` of the graph branch. Half of Cora's nodes train, as in the first column of `LABELS`."""
