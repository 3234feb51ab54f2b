"""Reads a user's graph from a folder of two tables, CSV or parquet, and checks every cell.

nodes.csv or .parquet has the columns id, label (text or number, empty where unknown), optionally split (train, val, test),
and every other column is a feature; edges.csv or .parquet has the columns source and target.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store import DataError, NodeIds
from sgformer import Graph, GraphError
from sgformer.config import Task
from training.data.labelled import TEST, TRAIN, UNUSED, VALIDATION

SPLIT_NAMES = {"train": TRAIN, "val": VALIDATION, "validation": VALIDATION, "test": TEST, "": UNUSED, None: UNUSED}


class TablesFolder:
    """The two tables of a folder. Ids and labels are read as text, so that 001 stays 001."""

    def __init__(self, path: Path) -> None:
        self._nodes, self._edges = _table(path, "nodes"), _table(path, "edges")
        for name, table, columns in (("nodes", self._nodes, ("id",)), ("edges", self._edges, ("source", "target"))):
            if missing := [column for column in columns if column not in table]:
                raise DataError(f"{name}: no column {', '.join(missing)}; it has {', '.join(list(table)[:12])}")
        if not self._nodes["id"]:
            raise DataError("nodes: the table has no rows")
        self._features = {name: column for name, column in self._nodes.items() if name not in ("id", "label", "split")}
        self.feature_names = tuple(self._features)
        texts = _id_texts("nodes", "id", self._nodes["id"])
        self.ids = NodeIds.build([int(text) for text in texts] if all(_is_whole(text) for text in texts) else texts)
        self._rows = {text: row for row, text in enumerate(texts)}

    def graph(self) -> Graph:
        features = _feature_matrix(self._features)
        edges = np.stack([self._ends(name) for name in ("source", "target")])
        try:
            return Graph.build(features, edges)
        except GraphError as error:
            raise DataError(f"nodes: {error}") from error

    def labels(self, task: Task | None) -> tuple[NDArray[Any], tuple[str, ...] | None]:
        """Class numbers with the names of the classes in ascending order, or for regression the values to predict."""
        if "label" not in self._nodes:
            raise DataError(f"nodes: no column label; it has {', '.join(list(self._nodes)[:12])}")
        texts = [_label_text(row, value) for row, value in enumerate(self._nodes["label"])]
        numbers = [_number(text) for text in texts]
        labels = [number for text, number in zip(texts, numbers, strict=True) if text is not None]
        has_fractions = None not in labels and any(number % 1 for number in labels if number is not None)
        if task == "regression" or (task is None and has_fractions):
            return self._values(texts, numbers), None
        if task == "multilabel":
            raise DataError("nodes: a folder has one label per node; for multi-label data use graph.npz with a 2-D y")
        classes = sorted({text for text in texts if text is not None}, key=_class_order)
        class_numbers: dict[str | None, int] = {text: number for number, text in enumerate(classes)} | {None: -1}
        return np.array([class_numbers[text] for text in texts], dtype=np.int64), tuple(classes)

    def split(self) -> NDArray[np.int8] | None:
        values = self._nodes.get("split")
        if values is None:
            return None
        for row, value in enumerate(values):
            if not isinstance(value, str | None) or value not in SPLIT_NAMES:
                raise DataError(f"nodes: row {row + 1}, column split: {value!r}, expected train, val, test or nothing")
        return np.array([SPLIT_NAMES[value] for value in values], dtype=np.int8)

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
    """Reads a table as columns by name, with None for missing values."""
    import pyarrow
    from pyarrow import csv, parquet

    path = next((path for kind in ("parquet", "csv") if (path := folder / f"{name}.{kind}").exists()), None)
    if path is None:
        raise DataError(f"there is neither {name}.parquet nor {name}.csv in {folder.name}")
    texts = dict.fromkeys(("id", "label", "split", "source", "target"), pyarrow.string())
    options = csv.ConvertOptions(column_types=texts, strings_can_be_null=True, quoted_strings_can_be_null=True)
    try:
        is_parquet = path.suffix == ".parquet"
        table = parquet.read_table(path) if is_parquet else csv.read_csv(path, convert_options=options)
        if len(set(table.column_names)) != len(table.column_names):
            raise DataError(f"{path.name} has two columns with the same name")
        return {column: table[column].to_pylist() for column in table.column_names}
    except (pyarrow.ArrowException, OSError, UnicodeError) as error:
        raise DataError(f"{path.name} cannot be read: {error}") from error


def _feature_matrix(columns: dict[str, list[Any]]) -> NDArray[np.float32]:
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
    """True for a 64-bit integer in its usual form: 7 and -7, but not 007 or +7."""
    return text.removeprefix("-").isdecimal() and len(text) < 21 and str(int(text)) == text and -(2**63) <= int(text) < 2**63


def _label_text(row: int, value: Any) -> str | None:
    """A label as text; None if it is missing. 1.0 becomes 1, because a column with gaps holds whole numbers as floats."""
    if value is None or value == "" or value != value:
        return None
    if not isinstance(value, str | int | float):
        raise DataError(f"nodes: row {row + 1}, column label: {value!r} is not a text or a number")
    number = _number(str(value))
    return str(int(number)) if number is not None and number % 1 == 0 else str(value)


def _class_order(text: str) -> tuple[bool, float, str]:
    """A sort key: numbers by value, then text."""
    number = _number(text)
    return number is None, number or 0.0, text


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text is not None else None
    except ValueError:
        return None
    return number if number is not None and abs(number) < 1e300 else None
