"""Checks that the arrays of a snapshot make a graph: indices inside it, lists that rise, degrees and ids that agree.

Arrays are read in runs, so that checking a large graph needs little memory. Runs of ids are short, because numpy and the
decoder hold the interpreter while they work on texts, and a worker that loads a version answers requests meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.errors import SnapshotError
from model_store.format.layout import DEGREES, INDICES, INDPTR, NODE_IDS, NODE_ORDER
from sgformer import Adjacency

RUN = 1_000_000
ID_RUN_BYTES = 2**17


def check_structure(arrays: Mapping[str, NDArray[Any]]) -> None:
    """A hash proves that files are as published; this proves that what was published is a graph.

    Raises:
        SnapshotError: names the file that does not fit.
    """
    _check_graph(Adjacency(arrays[INDPTR], arrays[INDICES]))
    _check_degrees(arrays[DEGREES], arrays[INDPTR])
    if NODE_ORDER in arrays:
        _check_node_order(arrays[NODE_IDS], arrays[NODE_ORDER])


def _check_graph(adjacency: Adjacency) -> None:
    indptr, indices = adjacency.indptr, adjacency.indices
    if indptr[0] != 0 or indptr[-1] != len(indices):
        raise SnapshotError(INDPTR, f"runs from {indptr[0]} to {indptr[-1]}, expected 0 to {len(indices)}")
    for start in range(0, len(indptr) - 1, RUN):
        if (np.diff(indptr[start : start + RUN + 1]) < 0).any():
            raise SnapshotError(INDPTR, "falls somewhere, expected numbers that never fall")
    for start in range(0, len(indices), RUN):
        run = indices[start : start + RUN + 1]
        if run.min() < 0 or run.max() >= adjacency.num_nodes:
            raise SnapshotError(INDICES, f"names a node outside 0 to {adjacency.num_nodes - 1}")
        # Neighbours rise within a list: where they fall, a new list must begin.
        falls = start + 1 + np.flatnonzero(run[1:] <= run[:-1])
        if (indptr[np.searchsorted(indptr, falls)] != falls).any():
            raise SnapshotError(INDICES, "has a list of neighbours that does not rise")


def _check_degrees(degrees: NDArray[Any], indptr: NDArray[Any]) -> None:
    for start in range(0, len(degrees), RUN):
        if (degrees[start : start + RUN] != np.diff(indptr[start : start + RUN + 1])).any():
            raise SnapshotError(DEGREES, f"does not agree with {INDPTR}")


def _check_node_order(ids: NDArray[Any], order: NDArray[Any]) -> None:
    if order.min() < 0 or order.max() >= len(ids):
        raise SnapshotError(NODE_ORDER, f"names a row outside 0 to {len(ids) - 1}")
    rows = max(1, ID_RUN_BYTES // ids.dtype.itemsize)
    for start in range(0, len(order), rows):
        run = ids[order[start : start + rows + 1]]
        if (run[1:] <= run[:-1]).any():
            raise SnapshotError(NODE_ORDER, f"does not put {NODE_IDS} in rising order, each id once")
        if run.dtype.kind == "S" and not _is_utf8(run):
            raise SnapshotError(NODE_IDS, "has an id that is not UTF-8")


def _is_utf8(run: NDArray[np.bytes_]) -> bool:
    """Decodes all ids as one text, a zero byte behind each, so that no character can span two ids."""
    separated = np.zeros((len(run), run.dtype.itemsize + 1), dtype=np.uint8)
    separated[:, :-1] = run.view(np.uint8).reshape(len(run), -1)
    try:
        separated.tobytes().decode()
    except UnicodeDecodeError:
        return False
    return True
