"""Nodes by names of their own: from an id to its row by bisection in a mapped order, so that no process holds an index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.errors import DataError
from sgformer import UnknownNodeError

MAX_ID_BYTES = 256


class NodeIds:
    def __init__(self, ids: NDArray[Any], order: NDArray[np.int64]) -> None:
        """`ids[row]` names the row (whole numbers, or UTF-8); `ids[order]` rises."""
        self._ids, self._order = ids, order

    @classmethod
    def build(cls, ids: Any) -> NodeIds:
        """From one id per node, all whole numbers or all texts.

        Raises:
            DataError: an id is empty, too long, of another type, or there twice.
        """
        array = _as_array(ids)
        order = np.argsort(array, kind="stable")
        ranked = array[order]
        if (same := np.flatnonzero(ranked[1:] == ranked[:-1])).size:
            first, second = sorted(order[same[0] : same[0] + 2])
            raise DataError(f"node_ids: rows {first} and {second} have the same id {_shown(array[first])!r}")
        return cls(array, order.astype(np.int64))

    @property
    def arrays(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        return self._ids, self._order

    @property
    def dtype(self) -> str:
        """In numpy's notation, byte order included."""
        return str(self._ids.dtype.newbyteorder("<").str)

    def rows(self, ids: Sequence[int | str]) -> NDArray[np.int64]:
        """The rows of these nodes.

        Raises:
            UnknownNodeError: names the first id that no node has.
        """
        wanted = np.array([self._encoded(one) for one in ids], dtype=self._ids.dtype)
        places = np.searchsorted(self._ids, wanted, sorter=self._order)
        rows = np.asarray(self._order[np.minimum(places, len(self._order) - 1)], dtype=np.int64)
        if (missing := np.flatnonzero(self._ids[rows] != wanted)).size:
            raise UnknownNodeError(f"node {ids[missing[0]]!r} is not in the graph", ids[missing[0]])
        return rows

    def names(self, rows: Iterable[int]) -> list[int | str]:
        return [_shown(self._ids[row]) for row in rows]

    def _encoded(self, one: int | str) -> int | bytes:
        if self._ids.dtype.kind == "i":
            if isinstance(one, bool) or not isinstance(one, int) or not -(2**63) <= one < 2**63:
                raise UnknownNodeError(f"node {one!r} is not in the graph, whose ids are whole numbers", one)
            return one
        if not isinstance(one, str):
            raise UnknownNodeError(f"node {one!r} is not in the graph, whose ids are texts", one)
        encoded = _encoded(one)
        # numpy would cut a longer text to the width of the ids, and could then find it.
        if len(encoded) > self._ids.dtype.itemsize or encoded.endswith(b"\0"):
            raise UnknownNodeError(f"node {one!r} is not in the graph", one)
        return encoded


def _as_array(ids: Any) -> NDArray[Any]:
    if isinstance(ids, list | tuple) and len({type(one) for one in ids}) > 1:
        raise DataError(
            "node_ids are of several types, expected all whole numbers or all texts"
        )  # numpy would make texts of all
    array = np.asarray(ids)
    if array.ndim != 1:
        raise DataError(f"node_ids have {array.ndim} dimension(s), expected one id per node")
    if array.dtype.kind in "iu":
        if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
            raise DataError(f"node_ids: {array.max()} does not fit 64-bit integers")
        return array.astype("<i8")
    if array.dtype.kind not in "UT":
        raise DataError(f"node_ids hold {array.dtype}, expected whole numbers or texts")
    texts = [_encoded(str(text)) for text in (ids if isinstance(ids, list | tuple) else array)]
    for row, text in enumerate(texts):
        if not text or len(text) > MAX_ID_BYTES or b"\0" in text or not _is_utf8(text):
            raise DataError(f"node_ids: row {row} has {text[:40]!r}, expected 1 to {MAX_ID_BYTES} bytes without NUL")
    return np.array(texts, dtype=f"S{max(map(len, texts), default=1)}")


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _encoded(text: str) -> bytes:
    """UTF-8; half a surrogate pair, which JSON can carry, becomes bytes that no id has."""
    return text.encode("utf-8", "surrogatepass")


def _shown(one: Any) -> int | str:
    return one.decode() if isinstance(one, bytes) else int(one)
