"""Cora, Citeseer and PubMed, read from the raw Planetoid files by PyTorch Geometric's reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from sgformer import Graph
from training.data.datasets.files import as_features, required
from training.data.labelled import LabelledGraph
from training.data.splits import from_nodes, per_class_split

AUTHORS_SEED = 123
FOLDERS = {"cora": "Cora", "citeseer": "Citeseer", "pubmed": "PubMed"}


def loader(name: str, per_class: bool = False) -> Callable[[Path, int, int], LabelledGraph]:
    """With the public split, or with `per_class` 20 random training nodes per class; split 0 is the authors' split."""

    def load(root: Path, split: int, _seed: int) -> LabelledGraph:
        from torch_geometric.io import read_planetoid_data  # takes seconds to import

        data = read_planetoid_data(str(required(root / "planetoid" / FOLDERS[name] / "raw")), name)
        labels = data.y.numpy().astype(np.int64)
        graph = Graph.build(as_features(data.x.numpy()), data.edge_index.numpy())
        public = from_nodes(len(labels), data.train_mask.numpy(), data.val_mask.numpy(), data.test_mask.numpy())
        if per_class:
            return LabelledGraph(f"{name}-random", graph, labels, per_class_split(labels, AUTHORS_SEED + split))
        return LabelledGraph(name, graph, labels, public)

    return load
