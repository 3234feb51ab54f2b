"""Data that users bring: `graph.npz`, or a folder with nodes and edges as CSV or parquet. Pickles are never loaded.

`graph.npz` holds a graph (see `model_store.graph_file`) and y: (N,) whole numbers with -1 for unlabelled nodes, (N, T) of 0
and 1 with NaN (multi-label), or floats (regression). Its split is train_mask, val_mask and test_mask, or split (0/1/2), or
none: then one is drawn.

A folder holds nodes.csv or .parquet with columns id, label (text or number, empty where unknown), optionally split (train,
val, test), and every other column a feature; and edges.csv or .parquet with columns source and target.
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
        task: told from the labels where None: 2-D is multi-label, fractions are regression, else multi-class.
        shares: of the labelled nodes that train and validate, where the data has no split of its own.

    Raises:
        DataError: what is wrong, in which file, row and column.
    """
    if path.is_dir():
        tables = _Folder(path)
        labels, class_names = tables.labels(task)
        file, split = GraphFile(tables.graph(), tables.ids, class_names), tables.split()
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
    names = file.class_names if task != "regression" else None
    feature_names = tuple(tables.features) if path.is_dir() else None
    return LabelledGraph(
        path.stem, file.graph, labels, split, task, tasks.OF_TASK[task][0], names, file.node_ids, feature_names
    )


def read_user_graph(path: Path) -> tuple[Graph, NodeIds | None, tuple[str, ...] | None]:
    """The graph alone, with its nodes' ids and its features' names where it has them: all that a refresh needs."""
    if path.is_dir():
        tables = _Folder(path)
        return tables.graph(), tables.ids, tuple(tables.features)
    file = read_graph_file(path)
    return file.graph, file.node_ids, None


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


class _Folder:
    """The two tables of a folder. Ids and labels are read as texts, so that 001 stays 001 and no column is guessed at."""

    def __init__(self, path: Path) -> None:
        self._nodes, self._edges = _table(path, "nodes"), _table(path, "edges")
        for name, table, columns in (("nodes", self._nodes, ("id",)), ("edges", self._edges, ("source", "target"))):
            if missing := [column for column in columns if column not in table]:
                raise DataError(f"{name}: no column {', '.join(missing)}; it has {', '.join(list(table)[:12])}")
        if not self._nodes["id"]:
            raise DataError("nodes: the table has no rows")
        self.features = {name: one for name, one in self._nodes.items() if name not in ("id", "label", "split")}
        texts = _id_texts("nodes", "id", self._nodes["id"])
        self._whole = all(_is_whole(text) for text in texts)
        self.ids = NodeIds.build([int(text) for text in texts] if self._whole else texts)
        self._rows = {text: row for row, text in enumerate(texts)}

    def graph(self) -> Graph:
        try:
            return Graph.build(_features(self.features), np.stack([self._ends(name) for name in ("source", "target")]))
        except GraphError as error:
            raise DataError(f"nodes: {error}") from error

    def labels(self, task: Task | None) -> tuple[NDArray[Any], tuple[str, ...] | None]:
        """Classes in rising order, whole numbers by value; or numbers to predict."""
        if "label" not in self._nodes:
            raise DataError(f"nodes: no column label; it has {', '.join(list(self._nodes)[:12])}")
        texts = [_label_text(row, value) for row, value in enumerate(self._nodes["label"])]
        numbers = [_number(text) for text in texts]
        given = [number for text, number in zip(texts, numbers, strict=True) if text is not None]
        fractions = bool(given) and all(n is not None for n in given) and any(n is not None and n % 1 for n in given)
        if task == "regression" or (task is None and fractions):
            return self._values(texts, numbers), None
        if task == "multilabel":
            raise DataError("nodes: a folder has one label per node; bring multi-label data as graph.npz with a 2-D y")
        classes = sorted({text for text in texts if text is not None}, key=_class_order)
        place = {text: number for number, text in enumerate(classes)}
        return np.array([-1 if text is None else place[text] for text in texts], dtype=np.int64), tuple(classes)

    def split(self) -> NDArray[np.int8] | None:
        return _named_split(self._nodes.get("split"))

    def _values(self, texts: list[str | None], numbers: list[float | None]) -> NDArray[np.float32]:
        for row, (text, number) in enumerate(zip(texts, numbers, strict=True)):
            if text is not None and number is None:
                raise DataError(f"nodes: row {row + 1}, column label: {text!r} is not a number")
        return np.array([np.nan if number is None else number for number in numbers], dtype=np.float32)

    def _ends(self, column: str) -> NDArray[np.int64]:
        texts = _id_texts("edges", column, self._edges[column])
        for row, text in enumerate(texts):
            if text not in self._rows:
                raise DataError(f"edges: row {row + 1}, column {column}: {text!r} is not the id of a node")
        return np.array([self._rows[text] for text in texts], dtype=np.int64)


def _table(folder: Path, name: str) -> dict[str, list[Any]]:
    """Columns by name, missing values as None. pyarrow reads both formats."""
    import pyarrow
    from pyarrow import csv, parquet

    found = [path for kind in ("parquet", "csv") if (path := folder / f"{name}.{kind}").exists()]
    if not found:
        raise DataError(f"there is neither {name}.parquet nor {name}.csv in {folder.name}")
    texts = dict.fromkeys(("id", "label", "split", "source", "target"), pyarrow.string())
    options = csv.ConvertOptions(column_types=texts, strings_can_be_null=True, quoted_strings_can_be_null=True)
    try:
        if found[0].suffix == ".parquet":
            table = parquet.read_table(found[0])
        else:
            table = csv.read_csv(found[0], convert_options=options)
        if len(set(table.column_names)) != len(table.column_names):
            raise DataError(f"{found[0].name} has two columns of one name")
        return {column: table[column].to_pylist() for column in table.column_names}
    except (pyarrow.ArrowException, OSError, UnicodeError) as error:
        raise DataError(f"{found[0].name} cannot be read: {error}") from error


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


def _id_texts(table: str, column: str, values: list[Any]) -> list[str]:
    for row, value in enumerate(values):
        if not isinstance(value, int | str) or isinstance(value, bool):
            raise DataError(f"{table}: row {row + 1}, column {column}: {value!r} is not an id")
    return [str(value) for value in values]


def _is_whole(text: str) -> bool:
    """A whole number as one writes it: 7 and -7, but not 007 or +7."""
    return text.removeprefix("-").isdigit() and len(text) < 19 and str(int(text)) == text


def _label_text(row: int, value: Any) -> str | None:
    """A label as a text; None where it is missing. 1.0 is 1: tables with gaps hold whole numbers so."""
    if value is None or value == "" or value != value:
        return None
    if not isinstance(value, str | int | float):
        raise DataError(f"nodes: row {row + 1}, column label: {value!r} is not a text or a number")
    number = _number(str(value))
    whole = number is not None and number % 1 == 0
    return str(int(number)) if whole and number is not None else str(value)


def _class_order(text: str) -> tuple[bool, float, str]:
    """Numbers by value, then texts."""
    number = _number(text)
    return number is None, number or 0.0, text


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text is not None else None
    except ValueError:
        return None
    return number if number is not None and abs(number) < 1e300 else None


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
        raise DataError("y has a single class: there is nothing to tell apart")
    return labels.astype(np.int64)


def _checked_zeros_and_ones(values: NDArray[np.float32], file: GraphFile) -> NDArray[np.float32]:
    if file.class_names is not None and len(file.class_names) != values.shape[1]:
        raise DataError(f"y has {values.shape[1]} columns, class_names has {len(file.class_names)} names")
    good = np.isnan(values) | np.isin(values, (0, 1))
    if not good.all():
        row, column = np.argwhere(~good)[0]
        raise DataError(f"y: row {row}, column {column} is {values[row, column]}, expected 0, 1 or NaN")
    return values
