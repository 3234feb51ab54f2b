"""Loads published data sets by name from raw files below SGF_DATA_ROOT. Nothing is written there.

One module per file layout. Files of users (`graph.npz`, tables) do not belong here: data/ reads them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from model_store import DataError
from model_store.run_settings import dataset_descriptions
from model_store.suggestions import did_you_mean
from training.data.datasets import digits, npz_files, ogbn, planetoid, pokec, synthetic
from training.data.labelled import LabelledGraph

Loader = Callable[[Path, int, int], LabelledGraph]
"""Takes the data root, the number of a stored split, and a seed for random splits."""


@dataclass(frozen=True)
class Dataset:
    load: Loader
    splits: int
    """The number of splits; `--split K` selects split K modulo this number."""
    about: str


LOADERS: dict[str, Loader] = {
    "digits": digits.load,
    **{name: planetoid.loader(name) for name in ("cora", "citeseer", "pubmed")},
    **{f"{name}-random": planetoid.loader(name, per_class=True) for name in ("cora", "citeseer", "pubmed")},
    **{name: npz_files.heterophilous_loader(name) for name in npz_files.HETEROPHILOUS_FILES},
    "deezer": npz_files.load_deezer,
    "debian": npz_files.load_debian,
    **{name: ogbn.loader(name) for name in ogbn.SPLITS},
    "pokec": pokec.load,
    "synthetic": synthetic.load,
}
DATASETS: dict[str, Dataset] = {name: Dataset(LOADERS[name], **about) for name, about in dataset_descriptions().items()}


def data_root() -> Path:
    return Path(os.environ.get("SGF_DATA_ROOT") or "data")


def load(name: str, split: int = 0, seed: int = 0, root: Path | None = None) -> LabelledGraph:
    """Raises DataError if there is no such data set, or its files do not exist."""
    if name not in DATASETS:
        raise DataError(
            f"there is no data set {name!r}, expected one of {', '.join(DATASETS)}{did_you_mean(name, DATASETS)}"
        )
    return DATASETS[name].load(root or data_root(), split % DATASETS[name].splits, seed)
