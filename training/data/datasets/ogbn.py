"""The node data sets of OGB, read from their raw files by OGB's readers.

OGB's dataset classes are not used: they write beside the raw files and access the network when imported.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgformer import Graph
from sgformer.config import Task
from training.data.datasets.files import required
from training.data.labelled import LabelledGraph
from training.data.splits import from_nodes

SPLITS = {"ogbn-arxiv": "time", "ogbn-proteins": "species", "ogbn-products": "sales_ranking", "ogbn-papers100M": "time"}


def loader(name: str) -> Callable[[Path, int, int], LabelledGraph]:
    def load(root: Path, _split: int, _seed: int) -> LabelledGraph:
        folder = required(root / "ogb" / name.replace("-", "_"))
        graph, labels = _read(folder / "raw", binary=(folder / "raw" / "data.npz").exists())
        features = graph["node_feat"] if graph["node_feat"] is not None else _mean_of_edges(graph)
        parts = (_numbers(folder / "split" / SPLITS[name] / f"{part}.csv.gz") for part in ("train", "valid", "test"))
        task: Task = "multilabel" if labels.shape[1] > 1 else "multiclass"
        split = from_nodes(len(labels), *parts)
        return LabelledGraph(
            name,
            Graph.build(np.asarray(features, dtype=np.float32), graph["edge_index"]),
            labels.astype(np.float32) if task == "multilabel" else _classes(labels[:, 0]),
            split,
            task,
            "roc_auc" if task == "multilabel" else "accuracy",
        )

    return load


def _read(raw: Path, binary: bool) -> tuple[dict[str, Any], NDArray[Any]]:
    sys.modules.setdefault("outdated", None)  # type: ignore[arg-type]  # else ogb looks for a newer version on the network
    with contextlib.redirect_stdout(io.StringIO()):  # its readers print
        from ogb.io.read_graph_raw import read_binary_graph_raw, read_csv_graph_raw

        if binary:
            with np.load(required(raw / "node-label.npz"), allow_pickle=False) as file:
                labels = file["node_label"]
            return read_binary_graph_raw(str(raw), add_inverse_edge=False)[0], labels
        graph = read_csv_graph_raw(str(required(raw / "edge.csv.gz").parent), add_inverse_edge=False)[0]
        return graph, _table(raw / "node-label.csv.gz")


def _mean_of_edges(graph: dict[str, Any]) -> NDArray[np.float32]:
    """For ogbn-proteins, which has features of edges only: a node has the mean over its edges."""
    ends, features = graph["edge_index"].reshape(-1), np.tile(graph["edge_feat"], (2, 1))
    sums = np.stack([np.bincount(ends, weights=column, minlength=graph["num_nodes"]) for column in features.T], axis=1)
    counts = np.bincount(ends, minlength=graph["num_nodes"])
    return (sums / np.maximum(counts, 1)[:, None]).astype(np.float32)


def _classes(labels: NDArray[Any]) -> NDArray[np.int64]:
    """OGB has NaN for a node without a label."""
    return np.where(np.isnan(labels.astype(np.float64)), -1, np.nan_to_num(labels)).astype(np.int64)


def _table(path: Path) -> NDArray[Any]:
    import pandas

    return np.asarray(pandas.read_csv(required(path), header=None).values)


def _numbers(path: Path) -> NDArray[np.int64]:
    return _table(path)[:, 0].astype(np.int64)
