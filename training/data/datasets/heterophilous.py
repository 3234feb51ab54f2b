"""actor, squirrel and chameleon (filtered of duplicates) and minesweeper: npz files with ten splits inside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from sgformer import Graph
from training.data.datasets.files import as_features, read
from training.data.labelled import LabelledGraph
from training.data.splits import from_nodes

FILES = {
    "actor": "actor.npz",
    "squirrel": "squirrel_filtered.npz",
    "chameleon": "chameleon_filtered.npz",
    "minesweeper": "minesweeper/raw/minesweeper.npz",
}


def loader(name: str) -> Callable[[Path, int, int], LabelledGraph]:
    def load(root: Path, split: int, _seed: int) -> LabelledGraph:
        data = read(root / "heterophilous" / FILES[name])
        labels = data["node_labels"].astype(np.int64)
        graph = Graph.build(as_features(data["node_features"]), data["edges"].T)
        masks = (data[f"{part}_masks"][split] for part in ("train", "val", "test"))
        metric = "roc_auc" if name == "minesweeper" else "accuracy"
        return LabelledGraph(name, graph, labels, from_nodes(len(labels), *masks), metric=metric)

    return load
