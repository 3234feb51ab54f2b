"""Reads `graph.npz` with its labels and split. Never loads pickles.

Besides the graph (see `model_store.publish.graph_file`), the file may hold y, the labels: (N,) whole numbers with -1 for
unlabelled nodes, (N, T) of 0, 1 and NaN (multi-label), or floats (regression); and a split: train_mask, val_mask and
test_mask, or split (0/1/2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.errors import DataError
from model_store.publish.graph_file import GRAPH_ARRAYS, GraphFile, MakeFeatures, array_names, read_arrays, read_graph_file
from sgformer.config import Task

Names = tuple[str, ...] | None
LABEL_ARRAYS = {"y", "split", "train_mask", "val_mask", "test_mask"}


@dataclass(frozen=True)
class LabelledFile:
    file: GraphFile
    labels: NDArray[Any] | None
    """None if the file has no array y."""
    split: NDArray[np.int8] | None
    task: Task


def read_labelled_file(path: Path, task: Task | None, make_features: MakeFeatures | None = None) -> LabelledFile:
    """Reads an npz file with labels.

    Args:
        make_features: as in `read_graph_file`.
        task: None derives it from the labels: 2-D is multi-label, floats are regression, else multi-class.

    Raises:
        DataError: names the array, the row and the column.
    """
    file = read_graph_file(path, make_features)
    arrays = read_arrays(path, LABEL_ARRAYS)
    if "y" not in arrays:
        return LabelledFile(file, None, _split(path.name, arrays, file.graph.num_nodes), task or "multiclass")
    return LabelledFile(file, *check_labels(path.name, arrays, file.graph.num_nodes, file.class_names, task))


def check_labels(
    source: str, arrays: Mapping[str, NDArray[Any]], count: int, class_names: Names, task: Task | None
) -> tuple[NDArray[Any], NDArray[np.int8] | None, Task]:
    """The labels, the split and the task of arrays that are named as in the file. Raises DataError."""
    task = task or _task_of(arrays["y"])
    try:
        labels = _checked_labels(arrays["y"], count, class_names, task)
    except DataError as error:
        raise DataError(f"{source}: {error}") from error
    return labels, _split(source, arrays, count), task


def unread_arrays(path: Path) -> tuple[str, ...]:
    """A warning about arrays that no command reads; () if there are none."""
    unread = sorted(name for name in array_names(path) if name not in GRAPH_ARRAYS | LABEL_ARRAYS)
    return (f"{path.name}: not read: {', '.join(unread)}",) if unread else ()


def _split(name: str, arrays: Mapping[str, NDArray[Any]], count: int) -> NDArray[np.int8] | None:
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
    conditions = [arrays[part] for part in masks]
    return np.select(conditions, range(3), default=-1).astype(np.int8)


def _task_of(labels: NDArray[Any]) -> Task:
    if labels.ndim == 2:
        return "multilabel"
    return "regression" if labels.dtype.kind == "f" else "multiclass"


def _checked_labels(labels: NDArray[Any], count: int, class_names: Names, task: Task) -> NDArray[Any]:
    if labels.ndim not in (1, 2) or len(labels) != count or (labels.ndim == 2 and task == "multiclass"):
        raise DataError(f"y has shape {labels.shape}, expected labels of {count} nodes for {task}")
    if task == "multiclass":
        return _checked_classes(labels, class_names)
    if labels.dtype.kind not in "fiub":
        raise DataError(f"y holds {labels.dtype}, expected numbers")
    values = labels.astype(np.float32)
    if task == "multilabel":
        return _checked_zeros_and_ones(values.reshape(count, -1), class_names)
    if np.isinf(values).any():
        raise DataError(f"y: row {int(np.argwhere(np.isinf(values))[0][0])} is infinite")
    return values


def _checked_classes(labels: NDArray[Any], class_names: Names) -> NDArray[np.int64]:
    if labels.dtype.kind not in "iu" or labels.min() < -1:
        hint = "; training.save_graph makes classes of texts" if labels.dtype.kind in "UST" else ""
        raise DataError(f"y holds {labels.dtype}, expected classes 0, 1, 2 ... and -1 for unlabelled nodes{hint}")
    if labels.max() >= len(labels):
        raise DataError(f"y has class {labels.max()}, which is more than there are nodes: classes are 0, 1, 2 ...")
    if class_names is not None and labels.max() >= len(class_names):
        raise DataError(f"y has class {labels.max()}, class_names has {len(class_names)} names")
    return labels.astype(np.int64)


def _checked_zeros_and_ones(values: NDArray[np.float32], class_names: Names) -> NDArray[np.float32]:
    if class_names is not None and len(class_names) != values.shape[1]:
        raise DataError(f"y has {values.shape[1]} columns, class_names has {len(class_names)} names")
    valid = np.isnan(values) | np.isin(values, (0, 1))
    if not valid.all():
        row, column = np.argwhere(~valid)[0]
        raise DataError(f"y: row {row}, column {column} is {values[row, column]}, expected 0, 1 or NaN")
    return values
