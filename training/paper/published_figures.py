"""The published figures that the tables compare with, and our bars: test scores in per cent."""

from __future__ import annotations

from dataclasses import dataclass

PUBLIC, COMMANDS, STORED = "public split", "20 per class, 500, 1000; seed 123", "ten stored splits, one per run"


@dataclass(frozen=True)
class Row:
    """One row of the table of medium-sized graphs. The recipe has the same name as the data set."""

    dataset: str
    splits: str
    """What the splits are."""
    bar: float
    """What we want to reach."""
    paper: float | None = None
    """The paper's figure, in the row of the split that its commands run."""
    authors: float | None = None
    """The result of the authors' commands (2 GCN layers, as in the paper) on this split; None if they were not run."""
    split: int | None = None
    """The split of all runs; None: the stored splits, one per run."""
    runs: int = 5


MEDIUM = (
    Row("cora", PUBLIC, 82.6, split=0),
    Row("citeseer", PUBLIC, 71.7, split=0),
    Row("pubmed", PUBLIC, 79.4, split=0),
    Row("cora-random", COMMANDS, 84.5, 84.5, 82.7, split=0),
    Row("citeseer-random", COMMANDS, 72.6, 72.6, 72.0, split=0),
    Row("pubmed-random", COMMANDS, 80.3, 80.3, 80.3, split=0),
    Row("actor", STORED, 37.9, 37.9, runs=10),
    Row("squirrel", STORED, 44.5, 41.8, runs=10),
    Row("chameleon", STORED, 44.9, 44.9, 43.6, runs=10),
    Row("deezer", "five stored splits, one per run", 67.1, 67.1),
)
FRESH = ("cora-random", "citeseer-random", "chameleon")
"""The data sets of the table of fresh splits, with the recipes of the same names."""
FRESH_SPLITS = 20
VARIANTS: dict[str, int | None] = {"cora-random": 0, "chameleon": None}
"""The data sets of the tables of attention functions and depths, and the split of all runs; None: one per run."""
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
