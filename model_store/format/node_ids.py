"""The user's own ids of the nodes. Lookup is a binary search in memory-mapped arrays: no process builds an index."""

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
        """`ids[row]` is the id of a row (int64 or UTF-8 bytes); `ids[order]` is sorted in ascending order."""
        self._ids, self._order = ids, order

    @classmethod
    def build(cls, ids: Any) -> NodeIds:
        """Takes one id per node, all whole numbers or all strings; or an array of valid UTF-8 bytes.

        Raises:
            DataError: an id is empty, too long, of another type, or a duplicate.
        """
        array = _to_array(ids)
        order = np.argsort(array, kind="stable")
        ascending = array[order]
        if (duplicates := np.flatnonzero(ascending[1:] == ascending[:-1])).size:
            first, second = sorted(order[duplicates[0] : duplicates[0] + 2])
            raise DataError(f"node_ids: rows {first} and {second} have the same id {_decode(array[first])!r}")
        return cls(array, order.astype(np.int64))

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def arrays(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        return self._ids, self._order

    @property
    def are_text(self) -> bool:
        return self._ids.dtype.kind == "S"

    @property
    def dtype(self) -> str:
        """In numpy's notation, with the byte order."""
        return str(self._ids.dtype.newbyteorder("<").str)

    def rows(self, ids: Sequence[int | str]) -> NDArray[np.int64]:
        """Returns the row of each node.

        Raises:
            UnknownNodeError: names the first id that is not in the graph.
        """
        encoded = np.array([self._encode(node_id) for node_id in ids], dtype=self._ids.dtype)
        positions = np.searchsorted(self._ids, encoded, sorter=self._order)
        rows = np.asarray(self._order[np.minimum(positions, len(self._order) - 1)], dtype=np.int64)
        if (missing := np.flatnonzero(self._ids[rows] != encoded)).size:
            raise UnknownNodeError(f"node {ids[missing[0]]!r} is not in the graph", ids[missing[0]])
        return rows

    def names(self, rows: Iterable[int]) -> list[int | str]:
        """Returns the id of each row."""
        return [_decode(self._ids[row]) for row in rows]

    def _encode(self, node_id: int | str) -> int | bytes:
        if self._ids.dtype.kind == "i":
            if isinstance(node_id, bool) or not isinstance(node_id, int) or not -(2**63) <= node_id < 2**63:
                raise UnknownNodeError(f"node {node_id!r} is not in the graph, whose ids are whole numbers", node_id)
            return node_id
        if not isinstance(node_id, str):
            raise UnknownNodeError(f"node {node_id!r} is not in the graph, whose ids are strings", node_id)
        encoded = _to_utf8(node_id)
        # numpy would truncate a longer string to the width of the ids, and the truncated string could match an id.
        if len(encoded) > self._ids.dtype.itemsize or encoded.endswith(b"\0"):
            raise UnknownNodeError(f"node {node_id!r} is not in the graph", node_id)
        return encoded


def _to_array(ids: Any) -> NDArray[Any]:
    if isinstance(ids, list | tuple) and len({type(node_id) for node_id in ids}) > 1:  # numpy would convert all to strings
        raise DataError("node_ids are of several types, expected all whole numbers or all strings")
    array = np.asarray(ids)
    if array.ndim != 1:
        raise DataError(f"node_ids have {array.ndim} dimension(s), expected one id per node")
    if array.dtype.kind in "iu":
        if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
            raise DataError(f"node_ids: {array.max()} does not fit 64-bit integers")
        return array.astype("<i8")
    if array.dtype.kind == "S":  # UTF-8 that the caller has checked
        return array
    if array.dtype.kind not in "UT":
        raise DataError(f"node_ids hold {array.dtype}, expected whole numbers or strings")
    texts = [_to_utf8(str(text)) for text in (ids if isinstance(ids, list | tuple) else array)]
    for row, text in enumerate(texts):
        if not _is_valid(text):
            expected = f"expected 1 to {MAX_ID_BYTES} bytes of valid UTF-8 without NUL"
            raise DataError(f"node_ids: row {row} has {text[:40]!r}, {expected}")
    return np.array(texts, dtype=f"S{max(map(len, texts), default=1)}")


def is_valid_text(node_id: str) -> bool:
    """Whether a node can have this id."""
    return _is_valid(_to_utf8(node_id))


def _is_valid(text: bytes) -> bool:
    return 0 < len(text) <= MAX_ID_BYTES and b"\0" not in text and is_utf8(text)


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _to_utf8(text: str) -> bytes:
    """Encodes a lone surrogate, which JSON can carry, as bytes that no valid id has."""
    return text.encode("utf-8", "surrogatepass")


def _decode(node_id: Any) -> int | str:
    return node_id.decode() if isinstance(node_id, bytes) else int(node_id)
