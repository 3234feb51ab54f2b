"""Small labelled graphs of every task, and users' files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from sgformer import ModelConfig
from training.data.datasets.synthetic import generate
from training.data.labelled import LabelledGraph

RNG = np.random.default_rng(0)


def labelled(task: Any = "multiclass", nodes: int = 300) -> LabelledGraph:
    data = generate(nodes, 4 * nodes, features=6, classes=3)
    if task == "multilabel":
        labels = np.stack([data.labels == 0, data.labels == 1], axis=1).astype(np.float32)
        labels[::7, 0] = np.nan
        return replace(data, task=task, metric="roc_auc", labels=labels)
    if task == "regression":
        return replace(data, task=task, metric="r2", labels=data.labels.astype(np.float32))
    return data


def config(data: LabelledGraph, **changes: Any) -> ModelConfig:
    settings = {"hidden": 8, "layers": 2, "attention_dropout": 0.3, "gnn_dropout": 0.3} | changes
    return ModelConfig(in_features=data.graph.num_features, out_features=data.num_outputs, task=data.task, **settings)


def user_arrays(**changes: Any) -> dict[str, Any]:
    arrays = {"x": RNG.random((20, 3)), "edge_index": RNG.integers(0, 20, (2, 40)), "y": np.arange(20) % 3}
    return {name: array for name, array in (arrays | changes).items() if array is not None}


def write_folder(folder: Path, kind: str, **changes: Any) -> Path:
    nodes: dict[str, Any] = {
        "id": [f"n{number}" for number in range(20)],
        "height": [number / 20 for number in range(20)],
        "width": list(range(20)),
        "label": ["red", "blue"] * 10,
    }
    edges: dict[str, Any] = {"source": ["n0", "n1", "n2"], "target": ["n1", "n2", "n19"]}
    for name, columns in (("nodes", nodes), ("edges", edges)):
        merged = {key: column for key, column in (columns | changes.get(name, {})).items() if column is not None}
        table = pa.table(merged)
        folder.mkdir(exist_ok=True)
        if kind == "csv":
            csv.write_csv(table, folder / f"{name}.csv")
        else:
            parquet.write_table(table, folder / f"{name}.parquet")
    return folder


def write_shop(folder: Path) -> Path:
    """Customers with mistakes in their tables: an index, a constant, and a column that is known only after the label."""
    rng = np.random.default_rng(7)
    stays = rng.random(120) < 0.6
    nodes = {
        "row": list(range(120)),
        "id": [f"c{number:03}" for number in range(120)],
        "days": np.where(stays, rng.integers(200, 2000, 120), rng.integers(1, 900, 120)).tolist(),
        "basket": np.round(rng.gamma(2, 20, 120), 2).tolist(),
        "genre": rng.choice(["jazz", "rock", "soul"], 120).tolist(),
        "country": ["NL"] * 120,
        "refund": np.where(stays, 0, rng.integers(5, 60, 120)).tolist(),
        "label": ["stays" if one else "leaves" for one in stays],
    }
    left, right = rng.integers(0, 120, (2, 900))
    near = (stays[left] == stays[right]) | (rng.random(900) < 0.3)
    edges = {"source": [f"c{one:03}" for one in left[near]], "target": [f"c{one:03}" for one in right[near]]}
    folder.mkdir()
    csv.write_csv(pa.table(nodes), folder / "nodes.csv")
    csv.write_csv(pa.table(edges), folder / "edges.csv")
    return folder
