"""Data sets whose raw files are npz: actor, squirrel and chameleon (both without duplicate nodes), minesweeper,
deezer and debian.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np

from model_store import NodeIds
from sgformer import Adjacency, Graph, SparseRows
from training.data.datasets.files import as_features, read_npz, required
from training.data.labelled import LabelledGraph
from training.data.splits import from_nodes

HETEROPHILOUS_FILES = {
    "actor": "actor.npz",
    "squirrel": "squirrel_filtered.npz",
    "chameleon": "chameleon_filtered.npz",
    "minesweeper": "minesweeper/raw/minesweeper.npz",
}


def heterophilous_loader(name: str) -> Callable[[Path, int, int], LabelledGraph]:
    def load(root: Path, split: int, _seed: int) -> LabelledGraph:
        data = read_npz(root / "heterophilous" / HETEROPHILOUS_FILES[name])
        labels = data["node_labels"].astype(np.int64)
        graph = Graph.build(as_features(data["node_features"]), data["edges"].T)
        masks = (data[f"{part}_masks"][split] for part in ("train", "val", "test"))
        metric = "roc_auc" if name == "minesweeper" else "accuracy"
        return LabelledGraph(name, graph, labels, from_nodes(len(labels), *masks), metric=metric)

    return load


def load_deezer(root: Path, split: int, _seed: int) -> LabelledGraph:
    """deezer-europe: 28,281 users with 31,241 sparse features, two classes."""
    data = read_npz(root / "deezer" / "deezer_europe_sparse.npz")
    splits = read_npz(root / "deezer" / "deezer_splits.npz")
    count, width = data["attr_shape"].tolist()
    rows = np.repeat(np.arange(count), np.diff(data["adj_indptr"]))
    adjacency = Adjacency.from_edges(np.stack([rows, data["adj_indices"].astype(np.int64)]), count)
    features = SparseRows(data["attr_indptr"], data["attr_indices"], data["attr_data"].astype(np.float32), width)
    parts = (splits[f"{part}_{split}"] for part in ("train", "valid", "test"))
    labels = data["labels"].astype(np.int64)
    return LabelledGraph("deezer", Graph(features, adjacency), labels, from_nodes(count, *parts))


def load_debian(root: Path, split: int, _seed: int) -> LabelledGraph:
    """The dependencies of the Debian 13 archive: packages by name, labelled by section. Not a published benchmark."""
    folder = root / "debian_trixie"
    data = read_npz(folder / "debian_trixie_svd128.npz")
    with gzip.open(required(folder / "node_names.txt.gz"), "rt", encoding="utf-8") as file:
        names = file.read().split("\n")[: len(data["y"])]
    return LabelledGraph(
        "debian",
        Graph.build(data["x"].astype(np.float32), data["edge_index"]),
        data["y"].astype(np.int64),
        data["splits"][split].astype(np.int8),
        class_names=tuple(str(name) for name in data["class_names"]),
        node_ids=NodeIds.build(names),
    )
