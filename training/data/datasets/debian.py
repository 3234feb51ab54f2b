"""The dependencies of the Debian 13 archive: packages by name, with their section as label. No published benchmark."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

from model_store import NodeIds
from sgformer import Graph
from training.data.datasets.files import found, read
from training.data.labelled import LabelledGraph


def load(root: Path, split: int, _seed: int) -> LabelledGraph:
    folder = root / "debian_trixie"
    data = read(folder / "debian_trixie_svd128.npz")
    with gzip.open(found(folder / "node_names.txt.gz"), "rt", encoding="utf-8") as file:
        names = file.read().split("\n")[: len(data["y"])]
    return LabelledGraph(
        "debian",
        Graph.build(data["x"].astype(np.float32), data["edge_index"]),
        data["y"].astype(np.int64),
        data["splits"][split].astype(np.int8),
        class_names=tuple(str(name) for name in data["class_names"]),
        node_ids=NodeIds.build(names),
    )
