"""deezer-europe: 28,281 users with 31,241 sparse features, two classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sgformer import Adjacency, Graph, SparseRows
from training.data.datasets.files import read
from training.data.labelled import LabelledGraph
from training.data.splits import from_nodes


def load(root: Path, split: int, _seed: int) -> LabelledGraph:
    data = read(root / "deezer" / "deezer_europe_sparse.npz")
    nodes = read(root / "deezer" / "deezer_splits.npz")
    count, width = data["attr_shape"].tolist()
    rows = np.repeat(np.arange(count), np.diff(data["adj_indptr"]))
    adjacency = Adjacency.from_edges(np.stack([rows, data["adj_indices"].astype(np.int64)]), count)
    features = SparseRows(data["attr_indptr"], data["attr_indices"], data["attr_data"].astype(np.float32), width)
    parts = (nodes[f"{part}_{split}"] for part in ("train", "valid", "test"))
    labels = data["labels"].astype(np.int64)
    return LabelledGraph("deezer", Graph(features, adjacency), labels, from_nodes(count, *parts))
