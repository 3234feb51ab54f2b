"""Data sets by name. Raw files are read under SGF_DATA_ROOT and nothing is ever written there."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from model_store import DataError
from training.datasets import debian, deezer, digits, heterophilous, ogbn, planetoid, pokec, synthetic
from training.labelled import LabelledGraph

Loader = Callable[[Path, int, int], LabelledGraph]
"""From the data root, the number of a stored split, and a seed for splits that are drawn."""


@dataclass(frozen=True)
class Dataset:
    load: Loader
    splits: int
    """How many splits are stored or meant; `--split K` takes one of them, modulo this."""
    about: str


DATASETS: dict[str, Dataset] = {
    "digits": Dataset(digits.labelled, 1, "handwritten digits as a nearest-neighbour graph (inside scikit-learn)"),
    **{name: Dataset(planetoid.loader(name), 1, f"{name}, the public split") for name in ("cora", "citeseer", "pubmed")},
    **{
        f"{name}-random": Dataset(planetoid.loader(name, per_class=True), 10, f"{name}, 20 random nodes per class train")
        for name in ("cora", "citeseer", "pubmed")
    },
    **{
        name: Dataset(heterophilous.loader(name), 10, f"{name}, 10 stored splits")
        for name in ("actor", "squirrel", "chameleon", "minesweeper")
    },
    "deezer": Dataset(deezer.load, 5, "deezer-europe, 31,241 sparse features, 5 stored splits"),
    "debian": Dataset(debian.load, 5, "dependencies of the Debian 13 archive, 5 stored splits"),
    **{name: Dataset(ogbn.loader(name), 1, f"{name}, OGB's own split") for name in ogbn.SPLITS},
    "pokec": Dataset(pokec.load, 1, "pokec in SNAP's layout, a random split"),
    "synthetic": Dataset(synthetic.load, 1, "communities with hubs, generated: 20,000 nodes"),
}


def data_root() -> Path:
    return Path(os.environ.get("SGF_DATA_ROOT") or "data")


def load(name: str, split: int = 0, seed: int = 0, root: Path | None = None) -> LabelledGraph:
    """A data set by its name.

    Raises:
        DataError: no such data set, or its files are not there.
    """
    if name not in DATASETS:
        raise DataError(f"there is no data set {name!r}, expected one of {', '.join(DATASETS)}")
    return DATASETS[name].load(root or data_root(), split % DATASETS[name].splits, seed)
