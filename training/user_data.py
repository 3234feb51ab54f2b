"""Data that users bring: `graph.npz`, or a folder with nodes and edges as CSV or parquet. Pickles are never loaded.

`graph.npz` holds a graph (see `model_store.graph_file`) and y: (N,) whole numbers with -1 for unlabelled nodes, (N, T) of 0
and 1 with NaN (multi-label), or floats (regression). Its split is train_mask, val_mask and test_mask, or split (0/1/2), or
none: then one is drawn.

A folder holds nodes.csv or .parquet with columns id, label (text or number), optionally split (train, val, test), and every
other column a feature; and edges.csv or .parquet with columns source and target.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store import DataError, NodeIds
from model_store.graph_file import GraphFile, read_arrays, read_graph_file
from sgformer import Graph, GraphError
from sgformer.config import Task
from training import tasks
from training.labelled import TEST, TRAIN, UNUSED, VALIDATION, LabelledGraph
from training.splits import from_nodes, random_split

SPLIT_NAMES = {"train": TRAIN, "val": VALIDATION, "validation": VALIDATION, "test": TEST, "": UNUSED, None: UNUSED}


def read_user_data(
    path: Path, task: Task | None = None, shares: tuple[float, float] = (0.5, 0.25), seed: int = 0
) -> LabelledGraph:
    """Reads a user's graph with its labels and split.

    Args:
        task: told from the labels where None: 2-D is multi-label, floats are regression, else multi-class.
        shares: of the labelled nodes that train and validate, where the data has no split of its own.

    Raises:
        DataError: what is wrong, in which file, row and column.
    """
    if path.is_dir():
        file, labels, split = _read_folder(path)
    else:
        file, labels, split = _read_npz(path)
    task = task or _told_task(labels)
    labels = _checked_labels(labels, file, task)
    labelled = labels >= 0 if task == "multiclass" else ~np.isnan(labels.reshape(len(labels), -1)).all(axis=1)
    if split is None:
        split = random_split(labelled, seed, shares)
    split = np.where(labelled, split, UNUSED).astype(np.int8)
    for part, number in (("training", TRAIN), ("validation", VALIDATION)):
        if not (split == number).any():
            raise DataError(f"{path.name}: the split has no labelled {part} nodes")
    names = file.class_names if task == "multiclass" else None
    return LabelledGraph(path.stem, file.graph, labels, split, task, tasks.OF_TASK[task][0], names, file.node_ids)


def _read_npz(path: Path) -> tuple[GraphFile, NDArray[Any], NDArray[np.int8] | None]:
    file = read_graph_file(path)
    arrays = read_arrays(path, {"y", "split", "train_mask", "val_mask", "test_mask"})
    if "y" not in arrays:
        raise DataError(f"{path.name} has no array y: labels are needed for training")
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
    together = sum(arrays[part].astype(int) for part in masks)
    if np.max(together) > 1:
        raise DataError(f"{name}: node {int(np.argmax(together))} is in several of {', '.join(masks)}")
    return from_nodes(count, *(arrays[part] for part in masks))


def _read_folder(path: Path) -> tuple[GraphFile, NDArray[Any], NDArray[np.int8] | None]:
    nodes, edges = _table(path, "nodes"), _table(path, "edges")
    for name, table, columns in (("nodes", nodes, ("id", "label")), ("edges", edges, ("source", "target"))):
        if missing := [column for column in columns if column not in table]:
            raise DataError(f"{name}: no column {', '.join(missing)}; it has {', '.join(list(table)[:12])}")
    ids = NodeIds.build(_id_list("nodes", "id", nodes["id"]))
    features = _features({name: column for name, column in nodes.items() if name not in ("id", "label", "split")})
    ends = [_rows(ids, name, edges[name]) for name in ("source", "target")]
    labels, names = _labels(nodes["label"])
    try:
        graph = Graph.build(features, np.stack(ends))
    except GraphError as error:
        raise DataError(f"nodes: {error}") from error
    return GraphFile(graph, ids, names), labels, _named_split(nodes.get("split"))


def _table(folder: Path, name: str) -> dict[str, list[Any]]:
    """Columns by name, missing values as None. pyarrow reads both formats."""
    from pyarrow import ArrowException, csv, parquet

    found = [path for kind in ("parquet", "csv") if (path := folder / f"{name}.{kind}").exists()]
    if not found:
        raise DataError(f"there is neither {name}.parquet nor {name}.csv in {folder.name}")
    try:
        table = parquet.read_table(found[0]) if found[0].suffix == ".parquet" else csv.read_csv(found[0])
    except (ArrowException, OSError) as error:
        raise DataError(f"{found[0].name} cannot be read: {error}") from error
    if len(set(table.column_names)) != len(table.column_names):
        raise DataError(f"{found[0].name} has two columns of one name")
    return {column: table[column].to_pylist() for column in table.column_names}


def _features(columns: dict[str, list[Any]]) -> NDArray[np.float32]:
    if not columns:
        raise DataError("nodes: no feature columns besides id, label and split")
    arrays = []
    for name, values in columns.items():
        for row, value in enumerate(values):
            if not isinstance(value, int | float) or value != value or abs(value) == float("inf"):
                raise DataError(f"nodes: row {row + 1}, column {name}: {value!r} is not a finite number")
        arrays.append(np.array(values, dtype=np.float64))
    return np.stack(arrays, axis=1).astype(np.float32)


def _id_list(table: str, column: str, values: list[Any]) -> list[int | str]:
    for row, value in enumerate(values):
        if not isinstance(value, int | str) or isinstance(value, bool):
            raise DataError(f"{table}: row {row + 1}, column {column}: {value!r} is not an id")
    return values


def _rows(ids: NodeIds, column: str, values: list[Any]) -> NDArray[np.int64]:
    known = {name: row for row, name in enumerate(ids.names(range(len(ids.arrays[0]))))}
    rows = [known.get(value, -1) for value in _id_list("edges", column, values)]
    if -1 in rows:
        row = rows.index(-1)
        raise DataError(f"edges: row {row + 1}, column {column}: {values[row]!r} is not the id of a node")
    return np.array(rows, dtype=np.int64)


def _labels(values: list[Any]) -> tuple[NDArray[Any], tuple[str, ...] | None]:
    """Texts and whole numbers are classes, in sorted order; fractions are values to predict."""
    given = [value for value in values if value is not None and value != ""]
    if any(isinstance(value, float) for value in given):
        return np.array([np.nan if value is None else value for value in values], dtype=np.float32), None
    classes = sorted(set(given), key=lambda value: (isinstance(value, str), value))
    number = {value: place for place, value in enumerate(classes)}
    return np.array([number.get(value, -1) for value in values], dtype=np.int64), tuple(str(value) for value in classes)


def _named_split(values: list[Any] | None) -> NDArray[np.int8] | None:
    if values is None:
        return None
    for row, value in enumerate(values):
        if value not in SPLIT_NAMES:
            raise DataError(f"nodes: row {row + 1}, column split: {value!r}, expected train, val, test or nothing")
    return np.array([SPLIT_NAMES[value] for value in values], dtype=np.int8)


def _told_task(labels: NDArray[Any]) -> Task:
    if labels.ndim == 2:
        return "multilabel"
    return "regression" if labels.dtype.kind == "f" else "multiclass"


def _checked_labels(labels: NDArray[Any], file: GraphFile, task: Task) -> NDArray[Any]:
    count = file.graph.num_nodes
    if labels.ndim not in (1, 2) or len(labels) != count or (labels.ndim == 2 and task == "multiclass"):
        raise DataError(f"y has shape {labels.shape}, expected labels of {count} nodes for {task}")
    if task == "multiclass":
        if labels.dtype.kind not in "iu" or labels.min() < -1:
            raise DataError(f"y holds {labels.dtype}, expected classes 0, 1, 2 ... and -1 for unlabelled nodes")
        if file.class_names is not None and labels.max() >= len(file.class_names):
            raise DataError(f"y has class {labels.max()}, class_names has {len(file.class_names)} names")
        return labels.astype(np.int64)
    if labels.dtype.kind not in "fiub":
        raise DataError(f"y holds {labels.dtype}, expected numbers")
    values = labels.astype(np.float32)
    if task == "multilabel":
        values = values.reshape(count, -1)
        if not (np.isnan(values) | np.isin(values, (0, 1))).all():
            row, column = np.argwhere(~(np.isnan(values) | np.isin(values, (0, 1))))[0]
            raise DataError(f"y: row {row}, column {column} is {values[row, column]}, expected 0, 1 or NaN")
    elif np.isinf(values).any():
        raise DataError(f"y: row {int(np.argwhere(np.isinf(values))[0][0])} is infinite")
    return values
