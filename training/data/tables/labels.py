"""The labels and the split in the table of nodes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgformer.config import Task
from training.data.labelled import TEST, TRAIN, UNUSED, VALIDATION
from training.data.tables import cells
from training.data.tables.table import Column, list_names

SPLIT_NAMES = {
    "train": TRAIN,
    "training": TRAIN,
    "val": VALIDATION,
    "valid": VALIDATION,
    "validation": VALIDATION,
    "test": TEST,
}
Labels = tuple[NDArray[Any], tuple[str, ...] | None]
"""Classes or values, and the names of the classes in ascending order."""


def read_labels(column: Column, task: Task | None, notes: list[str]) -> Labels:
    """Reads labels as classes, or for regression as values. Labels with fractions are values if no task is given."""
    if task == "multilabel":
        raise column.error("has one label per node; multi-label data needs graph.npz with a 2-D y")
    different, places = column.encoded()
    texts = [_label(text) for text in different]
    if not texts:
        raise column.error("has no labels, expected a class or a number in some rows")
    if missing := int((places < 0).sum()):
        notes.append(f"{missing:,} of {len(places):,} nodes have no label: they are part of the graph, but not scored")
    numbers = [cells.number(text) for text in texts]
    has_fractions = None not in numbers and any(number % 1 for number in numbers if number is not None)
    if task == "regression" or (task is None and has_fractions):
        if task is None:
            notes.append(f"column {column.name} has fractions: the task is regression (--task multiclass reads classes)")
        return _values(column, numbers, places), None
    return _classes(column, texts, places, notes)


def read_split(column: Column) -> NDArray[np.int8]:
    different, places = column.encoded()
    parts = [SPLIT_NAMES.get(text.lower()) for text in different]
    if wrong := [place for place, part in enumerate(parts) if part is None]:
        row = int(np.isin(places, wrong).argmax())
        raise column.error(f"{column.cell(row)}, expected train, val, test or an empty cell", row)
    return np.array([*parts, UNUSED], dtype=np.int8)[places]


def _label(text: str) -> str:
    """1.0 becomes 1, because a column with gaps often holds whole numbers as floats."""
    value = cells.number(text)
    return str(int(value)) if value is not None and value % 1 == 0 and abs(value) < 2**53 else text


def _values(column: Column, numbers: list[float | None], places: NDArray[np.int64]) -> NDArray[np.float32]:
    limit = np.finfo(np.float32).max
    if wrong := [place for place, number in enumerate(numbers) if number is None or not abs(number) <= limit]:
        row = int(np.isin(places, wrong).argmax())
        raise column.error(f"{column.cell(row)} is not a finite number, which regression predicts", row)
    return np.array([*numbers, np.nan], dtype=np.float32)[places]


def _classes(column: Column, texts: list[str], places: NDArray[np.int64], notes: list[str]) -> Labels:
    counts = np.bincount(places[places >= 0], minlength=len(texts))
    sizes: Counter[str] = Counter()
    for text, count in zip(texts, counts.tolist(), strict=True):  # 1 and 1.0 are one class
        sizes[text] += count
    names = sorted(sizes, key=cells.natural_order)
    _check_classes(column, sizes)
    if alone := [name for name in names if sizes[name] == 1]:
        few = "one node only, too few to learn it and to score it"
        notes.append(
            f"column {column.name}: class {list_names(alone)} has {few}"
            if len(alone) == 1
            else f"column {column.name}: classes {list_names(alone)} have {few} each"
        )
    numbers = {name: number for number, name in enumerate(names)}
    return np.array([*(numbers[text] for text in texts), -1], dtype=np.int64)[places], tuple(names)


def _check_classes(column: Column, sizes: Counter[str]) -> None:
    if len(sizes) == 1:
        raise column.error(f"has the single class {next(iter(sizes))!r}, expected at least two")
    if len(sizes) == sizes.total() and len(sizes) > 2:
        numbers = all(cells.number(text) is not None for text in sizes)
        choice = "--task regression predicts numbers, " if numbers else ""
        raise column.error(
            f"has a different label on each of {len(sizes):,} nodes, expected classes that repeat: {choice}"
            "--label-column chooses another column"
        )
