"""Reads users' data: `graph.npz`, or a folder of tables (`tables_folder`). Never loads pickles.

`graph.npz` holds a graph (see `model_store.publish.graph_file`) and y: (N,) whole numbers with -1 for unlabelled nodes,
(N, T) of 0 and 1 with NaN (multi-label), or floats (regression). Its split is train_mask, val_mask and test_mask, or
split (0/1/2); without either, a split is made.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store import DataError, NodeIds
from model_store.publish.graph_file import GraphFile, read_arrays, read_graph_file
from sgformer import Graph
from sgformer.config import Task
from training.data.labelled import TRAIN, VALIDATION, LabelledGraph, is_labelled
from training.data.splits import HALF, Shares, from_nodes, steady_split
from training.data.tables_folder import TablesFolder
from training.fit import tasks


def read_user_data(path: Path, task: Task | None = None, shares: Shares = HALF, seed: int = 0) -> LabelledGraph:
    """Reads a user's graph with its labels and split.

    Args:
        task: None derives it from the labels: 2-D is multi-label, fractions are regression, else multi-class.
        shares: of training, validation and test nodes, if the data has no split.

    Raises:
        DataError: names the problem, the file, the row and the column.
    """
    if path.is_dir():
        tables = TablesFolder(path)
        labels, class_names = tables.labels(task)
        file, split = GraphFile(tables.graph(), tables.ids, class_names), tables.split()
        feature_names = tables.feature_names
    else:
        file, labels, split = _read_npz(path)
        feature_names = None
    task = task or _task_of(labels)
    labels = _checked_labels(labels, file, task)
    drawn = None
    if split is None:
        keys = np.arange(len(labels)) if file.node_ids is None else file.node_ids.arrays[0]
        split = steady_split(keys, is_labelled(labels, task), seed, shares)
        drawn = f"{'/'.join(f'{share:g}' for share in shares)}, seed {seed}, by {'row' if file.node_ids is None else 'id'}"
    names = file.class_names if task != "regression" else None
    metric = tasks.TASK_METRICS[task][0]
    data = LabelledGraph(path.stem, file.graph, labels, split, task, metric, names, file.node_ids, feature_names, drawn)
    for part, number in (("training", TRAIN), ("validation", VALIDATION)):
        if not len(data.nodes(number)):
            raise DataError(f"{path.name}: the split has no labelled {part} nodes")
    return data


def read_user_graph(path: Path) -> tuple[Graph, NodeIds | None, tuple[str, ...] | None]:
    """Reads the graph without labels: the graph, the ids of the nodes and the names of the features, if there are any."""
    if path.is_dir():
        tables = TablesFolder(path)
        return tables.graph(), tables.ids, tables.feature_names
    file = read_graph_file(path)
    return file.graph, file.node_ids, None


def _read_npz(path: Path) -> tuple[GraphFile, NDArray[Any], NDArray[np.int8] | None]:
    file = read_graph_file(path)
    arrays = read_arrays(path, {"y", "split", "train_mask", "val_mask", "test_mask"})
    if "y" not in arrays:
        raise DataError(f"{path.name} has no array y: training needs labels")
    return file, arrays["y"], _npz_split(path.name, arrays, file.graph.num_nodes)


def _npz_split(name: str, arrays: dict[str, NDArray[Any]], count: int) -> NDArray[np.int8] | None:
    masks = [part for part in ("train_mask", "val_mask", "test_mask") if part in arrays]
    if "split" in arrays:
        split = arrays["split"]
        if split.shape != (count,) or split.dtype.kind not in "iu" or not np.isin(split, (-1, 0, 1, 2)).all():
            raise DataError(
                f"{name}: split is {split.dtype} {split.shape}, expected {count} of 0 (train), 1 (val), 2 (test), -1"
            )
        return split.astype(np.int8)
    if not masks:
        return None
    if len(masks) < 3:
        raise DataError(f"{name} has {', '.join(masks)}, expected all of train_mask, val_mask, test_mask")
    for part in masks:
        if arrays[part].shape != (count,) or arrays[part].dtype != bool:
            raise DataError(f"{name}: {part} is {arrays[part].dtype} {arrays[part].shape}, expected bool ({count},)")
    memberships = sum(arrays[part].astype(int) for part in masks)
    if np.max(memberships) > 1:
        raise DataError(f"{name}: node {int(np.argmax(memberships))} is in several of {', '.join(masks)}")
    return from_nodes(count, *(arrays[part] for part in masks))


def _task_of(labels: NDArray[Any]) -> Task:
    if labels.ndim == 2:
        return "multilabel"
    return "regression" if labels.dtype.kind == "f" else "multiclass"


def _checked_labels(labels: NDArray[Any], file: GraphFile, task: Task) -> NDArray[Any]:
    count = file.graph.num_nodes
    if labels.ndim not in (1, 2) or len(labels) != count or (labels.ndim == 2 and task == "multiclass"):
        raise DataError(f"y has shape {labels.shape}, expected labels of {count} nodes for {task}")
    if task == "multiclass":
        return _checked_classes(labels, file)
    if labels.dtype.kind not in "fiub":
        raise DataError(f"y holds {labels.dtype}, expected numbers")
    values = labels.astype(np.float32)
    if task == "multilabel":
        return _checked_zeros_and_ones(values.reshape(count, -1), file)
    if np.isinf(values).any():
        raise DataError(f"y: row {int(np.argwhere(np.isinf(values))[0][0])} is infinite")
    return values


def _checked_classes(labels: NDArray[Any], file: GraphFile) -> NDArray[np.int64]:
    if labels.dtype.kind not in "iu" or labels.min() < -1:
        raise DataError(f"y holds {labels.dtype}, expected classes 0, 1, 2 ... and -1 for unlabelled nodes")
    if labels.max() >= len(labels):
        raise DataError(f"y has class {labels.max()}, which is more than there are nodes: classes are 0, 1, 2 ...")
    if file.class_names is not None and labels.max() >= len(file.class_names):
        raise DataError(f"y has class {labels.max()}, class_names has {len(file.class_names)} names")
    if len(np.unique(labels[labels >= 0])) == 1:
        raise DataError("y has a single class, expected at least two")
    return labels.astype(np.int64)


def _checked_zeros_and_ones(values: NDArray[np.float32], file: GraphFile) -> NDArray[np.float32]:
    if file.class_names is not None and len(file.class_names) != values.shape[1]:
        raise DataError(f"y has {values.shape[1]} columns, class_names has {len(file.class_names)} names")
    valid = np.isnan(values) | np.isin(values, (0, 1))
    if not valid.all():
        row, column = np.argwhere(~valid)[0]
        raise DataError(f"y: row {row}, column {column} is {values[row, column]}, expected 0, 1 or NaN")
    return values
