"""Small labelled graphs of every task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from sgformer import ModelConfig
from training.datasets.synthetic import generate
from training.labelled import LabelledGraph


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
