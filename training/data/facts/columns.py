"""Facts about the feature columns: their types and ranges, and columns that should not be features."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from model_store import FeatureSchema
from sgformer import SparseRows
from sgformer.features import BLOCK_ROWS, FeatureRows, column_statistics
from training.data.facts.leaks import find_leaks

ColumnKind = Literal["constant", "0/1", "whole number", "number", "category", "date"]
Suspicion = Literal["index", "id", "label"]
MIN_ID_NODES = 20
LOG_MAX_CHANCE = -7.0
"""Natural logarithm of a probability of about 1 in 1,000. A column of n distinct whole numbers is taken for ids if n random
numbers from its range are all distinct with a smaller probability."""
INDEX_NAMES = re.compile(r"(|index|level_0|row|unnamed: ?\d+|column ?\d+)", re.IGNORECASE)
ID_NAMES = re.compile(r"(.*[_ -])?(id|ids|uuid|guid)|.*[a-z](Id|ID)")


@dataclass(frozen=True)
class ColumnFacts:
    name: str
    """The name of the feature, or its number if the data has no names."""
    kind: ColumnKind
    low: float
    high: float
    scale: float
    """The standard deviation; 1 for a constant column."""
    suspicion: Suspicion | None = None
    categories: int | None = None
    """The number of categories, if this is a category column of a table; else None. Each category is a 0/1 position of the
    feature vector."""
    missing: float | None = None
    """The share of the cells of a table that were missing and have been filled in; None if the data is no table."""


def with_missing(columns: list[ColumnFacts], cells: Mapping[str, int], rows: int) -> list[ColumnFacts]:
    """The columns of a table with their shares of missing cells. `cells`: the number of missing cells, by column."""
    return [replace(column, missing=cells.get(column.name, 0) / rows) for column in columns]


def by_schema(positions: list[ColumnFacts], schema: FeatureSchema) -> list[ColumnFacts]:
    """Combines facts about positions of the feature vectors into facts about the columns of a table."""
    columns, start = [], 0
    for column in schema.columns:
        own = positions[start : start + column.width]
        start += column.width
        if column.kind == "category":
            suspicion = next((place.suspicion for place in own if place.suspicion), None)
            kind: ColumnKind = "constant" if all(place.kind == "constant" for place in own) else "category"
            category = ColumnFacts(column.name, kind, 0, 1, max(place.scale for place in own), suspicion)
            columns.append(replace(category, categories=len(column.categories)))
        else:
            dated = column.kind == "date" and own[0].kind != "constant"
            columns.append(replace(own[0], name=column.name, kind="date" if dated else own[0].kind))
    return columns


def column_facts(rows: FeatureRows, names: tuple[str, ...] | None, labels: NDArray[Any] | None) -> list[ColumnFacts]:
    """Returns the facts about each column, in order.

    Args:
        labels: classes (N,), -1 for unknown; or values (N,) or (N, T), NaN for unknown; None if the data has no labels.
    """
    low, high, whole = _ranges(rows)
    _, scale = column_statistics(rows)
    texts = names or tuple(map(str, range(rows.shape[1])))
    columns = [
        ColumnFacts(text, _kind(*limits), float(limits[0]), float(limits[1]), float(deviation))
        for text, *limits, deviation in zip(texts, low, high, whole, scale, strict=True)
    ]
    for place, suspicion in _suspicions(rows, columns, names is not None, labels).items():
        columns[place] = replace(columns[place], suspicion=suspicion)
    return columns


def as_matrix(rows: FeatureRows) -> Any:
    """Sparse rows as a scipy matrix without a copy; dense rows as they are."""
    if not isinstance(rows, SparseRows):
        return rows
    return sparse.csr_matrix((rows.values, rows.indices, rows.indptr), shape=rows.shape)


def _kind(low: float, high: float, whole: bool) -> ColumnKind:
    if low == high:
        return "constant"
    if not whole:
        return "number"
    return "0/1" if low == 0 and high == 1 else "whole number"


def _ranges(rows: FeatureRows) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
    """The least and the largest value of every column, and whether all its values are whole."""
    if isinstance(rows, SparseRows):
        matrix = as_matrix(rows)
        low, high = (extreme.toarray()[0] for extreme in (matrix.min(axis=0), matrix.max(axis=0)))
        fractions = np.bincount(rows.indices[rows.values % 1 != 0], minlength=rows.width)
        return low, high, fractions == 0
    low, high = np.full(rows.shape[1], np.inf), np.full(rows.shape[1], -np.inf)
    whole = np.ones(rows.shape[1], dtype=bool)
    for start in range(0, len(rows), BLOCK_ROWS):  # bounds the memory
        block = rows[start : start + BLOCK_ROWS]
        low, high = np.minimum(low, block.min(axis=0)), np.maximum(high, block.max(axis=0))
        whole[whole] = (np.rint(block[:, whole]) == block[:, whole]).all(axis=0)
    return low, high, whole


def _suspicions(
    rows: FeatureRows, columns: list[ColumnFacts], named: bool, labels: NDArray[Any] | None
) -> dict[int, Suspicion]:
    """The suspicious columns; the most certain suspicion wins."""
    matrix, suspicions = as_matrix(rows), dict[int, Suspicion]()
    for place, column in enumerate(columns):
        if column.kind == "constant":
            continue
        if named and ID_NAMES.fullmatch(column.name):
            suspicions[place] = "id"
        if named and INDEX_NAMES.fullmatch(column.name):
            suspicions[place] = "index"
        elif column.kind == "whole number" and column.high - column.low >= rows.shape[0] - 1:
            values = matrix[:, [place]]
            if suspicion := _suspect_ids(values.toarray()[:, 0] if isinstance(rows, SparseRows) else values[:, 0]):
                suspicions[place] = suspicion
    if labels is not None:
        suspicions |= dict.fromkeys(find_leaks(matrix, labels), "label")
    return suspicions


def _suspect_ids(values: NDArray[Any]) -> Suspicion | None:
    """Whether whole numbers look like row numbers, like ids, or like neither."""
    if len(values) < MIN_ID_NODES:
        return None
    if (np.diff(values) == 1).all():
        return "index"
    log_chance = -(len(values) ** 2) / (2 * (values.max() - values.min()))  # of no repetition: the birthday problem
    return "id" if log_chance < LOG_MAX_CHANCE and len(np.unique(values)) == len(values) else None
