"""Data sets by name. Raw files are read under SGF_DATA_ROOT and nothing is ever written there."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from model_store import DataError
from model_store.run_contract import dataset_descriptions
from training.data.datasets import debian, deezer, digits, heterophilous, ogbn, planetoid, pokec, synthetic
from training.data.labelled import LabelledGraph

Loader = Callable[[Path, int, int], LabelledGraph]
"""From the data root, the number of a stored split, and a seed for splits that are drawn."""


@dataclass(frozen=True)
class Dataset:
    load: Loader
    splits: int
    """How many splits are stored or meant; `--split K` takes one of them, modulo this."""
    about: str


LOADERS: dict[str, Loader] = {
    "digits": digits.labelled,
    **{name: planetoid.loader(name) for name in ("cora", "citeseer", "pubmed")},
    **{f"{name}-random": planetoid.loader(name, per_class=True) for name in ("cora", "citeseer", "pubmed")},
    **{name: heterophilous.loader(name) for name in ("actor", "squirrel", "chameleon", "minesweeper")},
    "deezer": deezer.load,
    "debian": debian.load,
    **{name: ogbn.loader(name) for name in ogbn.SPLITS},
    "pokec": pokec.load,
    "synthetic": synthetic.load,
}
DATASETS: dict[str, Dataset] = {name: Dataset(LOADERS[name], **about) for name, about in dataset_descriptions().items()}


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
