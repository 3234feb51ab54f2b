"""Checks that the arrays of a snapshot form a graph: valid indices, sorted lists, matching degrees, valid ids and labels.

Reads the arrays in chunks to bound memory. Chunks of ids are short because numpy and the UTF-8 decoder hold the GIL while
they work on strings, and a worker answers requests while it loads a version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.errors import SnapshotError
from model_store.format.layout import (
    DEGREES,
    FEATURES_INDICES,
    FEATURES_INDPTR,
    INDICES,
    INDPTR,
    LABELS,
    LIST_ROWS,
    LIST_STARTS,
    NODE_IDS,
    NODE_ORDER,
    SPLIT,
)
from model_store.format.node_ids import is_utf8
from model_store.format.raw_data import find_wrong_label, find_wrong_part
from sgformer import ModelConfig

CHUNK_ENTRIES = 1_000_000
ID_CHUNK_BYTES = 2**17


def check_structure(arrays: Mapping[str, NDArray[Any]], config: ModelConfig) -> None:
    """Checks that the arrays form a valid graph. Hashes prove only that the files are as published.

    Raises:
        SnapshotError: names the file that is wrong.
    """
    check_lists(arrays, INDPTR, INDICES, len(arrays[DEGREES]))
    _check_degrees(arrays[DEGREES], arrays[INDPTR])
    if NODE_ORDER in arrays:
        check_node_order(arrays[NODE_IDS], arrays[NODE_ORDER])
    if FEATURES_INDPTR in arrays:
        check_lists(arrays, FEATURES_INDPTR, FEATURES_INDICES, config.in_features)
    if LABELS in arrays and (problem := find_wrong_label(arrays[LABELS], config)):
        raise SnapshotError(LABELS, f"the label {problem}")
    if LIST_ROWS in arrays:
        _check_similar_lists(arrays)
    if SPLIT in arrays and (problem := find_wrong_part(arrays[SPLIT])):
        raise SnapshotError(SPLIT, problem)


def check_lists(arrays: Mapping[str, NDArray[Any]], indptr_file: str, indices_file: str, limit: int) -> None:
    """Checks the lists of a CSR matrix: neighbours of nodes, or columns of feature rows."""
    indptr, indices = arrays[indptr_file], arrays[indices_file]
    if indptr[0] != 0 or indptr[-1] != len(indices):
        raise SnapshotError(indptr_file, f"runs from {indptr[0]} to {indptr[-1]}, expected 0 to {len(indices)}")
    for start in range(0, len(indptr) - 1, CHUNK_ENTRIES):
        if (np.diff(indptr[start : start + CHUNK_ENTRIES + 1]) < 0).any():
            raise SnapshotError(indptr_file, "decreases, expected numbers that never decrease")
    for start in range(0, len(indices), CHUNK_ENTRIES):
        chunk = indices[start : start + CHUNK_ENTRIES + 1]
        if chunk.min() < 0 or chunk.max() >= limit:
            raise SnapshotError(indices_file, f"holds an index outside 0 to {limit - 1}")
        # Within a list, indices ascend. A position at which they do not must be the start of a list.
        breaks = start + 1 + np.flatnonzero(chunk[1:] <= chunk[:-1])
        if (indptr[np.searchsorted(indptr, breaks)] != breaks).any():
            raise SnapshotError(indices_file, "has a list that is not in ascending order")


def _check_similar_lists(arrays: Mapping[str, NDArray[Any]]) -> None:
    """Checks that the lists of the index have every row once."""
    starts, rows = arrays[LIST_STARTS], arrays[LIST_ROWS]
    if starts[0] != 0 or starts[-1] != len(rows) or (np.diff(starts) < 0).any():
        raise SnapshotError(LIST_STARTS, f"does not rise from 0 to {len(rows)}")
    is_listed = np.zeros(len(rows), dtype=bool)
    for start in range(0, len(rows), CHUNK_ENTRIES):
        chunk = rows[start : start + CHUNK_ENTRIES]
        if chunk.min() < 0 or chunk.max() >= len(rows):
            raise SnapshotError(LIST_ROWS, f"holds a row outside 0 to {len(rows) - 1}")
        is_listed[chunk] = True
    if not is_listed.all():
        raise SnapshotError(LIST_ROWS, f"does not have row {int(is_listed.argmin())}")


def _check_degrees(degrees: NDArray[Any], indptr: NDArray[Any]) -> None:
    for start in range(0, len(degrees), CHUNK_ENTRIES):
        if (degrees[start : start + CHUNK_ENTRIES] != np.diff(indptr[start : start + CHUNK_ENTRIES + 1])).any():
            raise SnapshotError(DEGREES, f"does not agree with {INDPTR}")


def check_node_order(ids: NDArray[Any], order: NDArray[Any]) -> None:
    if order.min() < 0 or order.max() >= len(ids):
        raise SnapshotError(NODE_ORDER, f"names a row outside 0 to {len(ids) - 1}")
    rows = max(1, ID_CHUNK_BYTES // ids.dtype.itemsize)
    for start in range(0, len(order), rows):
        chunk = ids[order[start : start + rows + 1]]
        if (chunk[1:] <= chunk[:-1]).any():
            raise SnapshotError(NODE_ORDER, f"does not put {NODE_IDS} in ascending order, each id once")
        if chunk.dtype.kind == "S" and not is_utf8(_join_with_zero_bytes(chunk)):
            raise SnapshotError(NODE_IDS, "has an id that is not UTF-8")


def _join_with_zero_bytes(ids: NDArray[np.bytes_]) -> bytes:
    """Returns all ids as one string, a zero byte after each, so that no character can span two ids."""
    separated = np.zeros((len(ids), ids.dtype.itemsize + 1), dtype=np.uint8)
    separated[:, :-1] = ids.view(np.uint8).reshape(len(ids), -1)
    return separated.tobytes()
