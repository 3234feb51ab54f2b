"""The ids of nodes in the tables: read as text, checked, and looked up for the ends of edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from model_store import DataError, NodeIds
from model_store.format.node_ids import MAX_ID_BYTES
from training.data.tables.table import Column, shorten, to_numpy

WHOLE = r"^(-?\d+)(?:\.0+)?$"
EXCEL_NUMBER = r"^\d(\.\d+)?[eE]\+\d+$"
USUAL_WHOLE = r"^(0|-?[1-9]\d{0,18})$"
MAX_EXACT_FLOAT = 2.0**53
CHUNK_ROWS = 1 << 16


def id_texts(column: Column) -> Any:
    """The ids of a column as a pyarrow array of texts.

    Raises:
        DataError: an id is missing, or is a number that has lost digits.
    """
    if pa.types.is_floating(column.values.type):
        _check_floats(column)
    texts = column.texts()
    for row in np.flatnonzero(to_numpy(pc.fill_null(pc.equal(texts, ""), True)))[:1]:
        raise column.error("an empty cell, expected the id of a node", int(row))
    lost = to_numpy(pc.match_substring_regex(texts, EXCEL_NUMBER))
    for row in np.flatnonzero(lost)[:1]:
        problem = (
            f"{column.cell(row)} is a number that a spreadsheet has shortened, expected the whole id: export ids as text"
        )
        raise column.error(problem, int(row))
    return texts


def plain_numbers(nodes: Any, ends: list[Any]) -> list[Any]:
    """The ids of the nodes and of the ends of edges, without the decimal point of 1.0 if all ids of nodes are whole numbers.

    A column of whole numbers that once had a gap is often written as floats.
    """
    if not pc.all(pc.match_substring_regex(nodes, WHOLE)).as_py():
        return [nodes, *ends]
    return [pc.replace_substring_regex(texts, WHOLE, r"\1") for texts in (nodes, *ends)]


def build_ids(column: Column | None, texts: Any) -> NodeIds:
    """The ids of the nodes: whole numbers if every one is written so, else text, so that 007 stays 007.

    Args:
        column: where the texts are from, for messages; None if they have no duplicates.
    """
    if column is not None and pc.count_distinct(texts).as_py() < len(texts):
        order = to_numpy(pc.sort_indices(texts)).astype(np.int64)  # stable
        ordered = texts.take(pa.array(order))
        repeats = np.flatnonzero(to_numpy(pc.equal(ordered.slice(1), ordered.slice(0, len(texts) - 1))))
        place = repeats[order[repeats + 1].argmin()]
        first, second = int(order[place]), int(order[place + 1])
        also = column.table.place(first).removeprefix(f"{column.table.file} ")
        raise column.error(f"{shorten(texts[second].as_py())} is also the id on {also}, expected one row per node", second)
    try:
        return NodeIds.build(_array_of(texts))
    except DataError as error:
        raise DataError(f"{column.table.file if column else 'edges'}: {error}") from error


def rows_of(texts: Any, nodes: Any) -> NDArray[np.int64]:
    """The row of each id among the ids of the nodes; -1 for an id that no node has."""
    return to_numpy(pc.fill_null(pc.index_in(texts, value_set=nodes), -1)).astype(np.int64)


def similar_id(text: str, nodes: Any) -> str:
    """A hint at an id that differs only in zeros before it, capital letters or a decimal point."""
    wanted = _folded(text)
    similar = next((node for node in map(str, nodes) if _folded(node) == wanted), None)
    return "" if similar is None else f"; did you mean {similar!r}?"


def _folded(text: str) -> str:
    return text.casefold().removesuffix(".0").lstrip("0")


def _check_floats(column: Column) -> None:
    numbers = to_numpy(pc.fill_null(column.values, 0.0))
    for row in np.flatnonzero((numbers % 1 != 0) | (np.abs(numbers) > MAX_EXACT_FLOAT))[:1]:
        problem = (
            f"{column.cell(row)} is a float that is no exact whole number, expected an id: write ids as integers or text"
        )
        raise column.error(problem, int(row))


def _array_of(texts: Any) -> NDArray[Any]:
    """Whole numbers if every text is a 64-bit integer in its usual form, 7 or -7 but not 007; else UTF-8 bytes."""
    if pc.all(pc.match_substring_regex(texts, USUAL_WHOLE)).as_py():
        try:
            return to_numpy(texts.cast(pa.int64()))
        except pa.ArrowInvalid:
            pass  # more than 64 bits: text
    width = max(1, pc.max(pc.binary_length(texts)).as_py() or 0)
    if width > MAX_ID_BYTES or pc.any(pc.match_substring(texts, "\0")).as_py():
        return np.array(texts.to_pylist())  # which `NodeIds.build` refuses, with the row
    array: NDArray[Any] = np.empty(len(texts), dtype=f"S{width}")
    for start in range(0, len(texts), CHUNK_ROWS):  # bounds the memory
        array[start : start + CHUNK_ROWS] = texts.slice(start, CHUNK_ROWS).cast(pa.large_binary()).to_pylist()
    return array
