"""Values for a few of many rows: time and memory follow the rows in use, not the number of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgformer.arrays.operations import Array, Indices

ABSENT = -1
HIDDEN, KEPT = -2, -3
"""The number of a hidden row: HIDDEN if it has no slot, else KEPT minus its slot."""
PAGE_BYTES = 4096
SPARE_ROWS = 1024


class RowValues:
    """A number per row, zero for rows that were never set.

    The array has a place for every row: the operating system allocates only the pages that are written.
    """

    def __init__(self, num_rows: int, dtype: Any) -> None:
        """Has room for `num_rows` rows, and for some rows that are added later."""
        self._values = np.zeros(num_rows + num_rows // 4 + SPARE_ROWS, dtype=dtype)
        """The last entry stays 0: `get` reads it for every row that the array has no place for."""
        self._num_set = 0

    def get(self, rows: Indices) -> NDArray[Any]:
        return self._values.take(rows, mode="clip")

    def set(self, rows: Indices, values: NDArray[Any] | int) -> None:
        """If a row is repeated, one of its values stays."""
        if not len(rows):
            return
        size = int(rows.max()) + 2
        if size > len(self._values):
            self._values = grown(self._values, size, 0)
        self._values[rows] = values
        self._num_set += len(rows)

    @property
    def num_bytes(self) -> int:
        """An upper bound of the memory in use."""
        return min(self._values.nbytes, self._num_set * PAGE_BYTES)


class RowNumbers(RowValues):
    """An integer per row, ABSENT for rows that were never set."""

    def __init__(self, num_rows: int) -> None:
        super().__init__(num_rows, np.int64)  # the numbers, plus 1

    def get(self, rows: Indices) -> Indices:
        numbers: Indices = super().get(rows) - 1
        return numbers

    def get_one(self, row: int) -> int:
        return int(self._values[row]) - 1 if row < len(self._values) else ABSENT

    def set(self, rows: Indices, values: Indices | int) -> None:
        super().set(rows, values + 1)

    def rows_below(self, number: int) -> Indices:
        """The rows whose number is below `number`, which must not exceed ABSENT, in ascending order. Reads all rows."""
        return np.flatnonzero(self._values < number + 1)

    def rows_from(self, smallest: int) -> Indices:
        """The rows whose number is at least `smallest`, which must not be negative, in ascending order. Reads all rows."""
        return np.flatnonzero(self._values > smallest)


class RowTable:
    """Rows with values in several columns, e.g. ((64,), float32) for a state. The columns grow with the rows in use."""

    def __init__(self, num_rows: int, *columns: tuple[tuple[int, ...], Any]) -> None:
        """`num_rows` is the current number of rows; more may follow."""
        self._slots = RowNumbers(num_rows)
        self._columns = [np.empty((0, *shape), dtype=dtype) for shape, dtype in columns]
        self._num_slots = self._num_hidden = 0

    def __len__(self) -> int:
        """The number of rows that have values."""
        return self._num_slots - self._num_hidden

    def rows(self) -> Indices:
        """The rows that have values, ascending."""
        return self._slots.rows_from(0)

    def slots(self, rows: Indices) -> Indices:
        """The slot of every row; negative for a row without values: ABSENT, or less if `hide` was called for it."""
        return self._slots.get(rows)

    def slot(self, row: int) -> int:
        """`slots` for one row, faster."""
        return self._slots.get_one(row)

    def hidden(self) -> Indices:
        """The rows for which `hide` was called, ascending. Reads all rows."""
        return self._slots.rows_below(ABSENT)

    def column(self, number: int) -> NDArray[Any]:
        """The values by slot."""
        return self._columns[number]

    def put(self, rows: Indices, *values: Array) -> None:
        """Sets the values of distinct rows, in every column."""
        slots = self._slots.get(rows)
        missing = (slots < 0).nonzero()[0]
        if len(missing):
            slots[missing] = self._slots_for(slots[missing])
            self._slots.set(rows, slots)
        for column, part in zip(self._columns, values, strict=True):
            column[slots] = part

    def hide(self, rows: Indices) -> None:
        """Removes the values of distinct rows that are not hidden, and marks the rows. A row keeps its slot."""
        slots = self._slots.get(rows)
        self._slots.set(rows, KEPT - slots)  # ABSENT becomes HIDDEN
        self._num_hidden += int(np.count_nonzero(slots >= 0))

    def read(self, rows: Indices, number: int, otherwise: Callable[[Indices], Array], slots: Indices | None = None) -> Array:
        """The values of rows in a column; `otherwise` reads the rows that have none.

        `slots`: as `slots(rows)` returns them, if the caller has them.
        """
        slots, column = self._slots.get(rows) if slots is None else slots, self._columns[number]
        missing = (slots < 0).nonzero()[0]
        if len(missing) == len(rows):
            return otherwise(rows)
        values = column.take(slots, axis=0, mode="clip")
        if len(missing):
            values[missing] = otherwise(rows[missing])
        return values

    @property
    def num_columns(self) -> int:
        return len(self._columns)

    @property
    def num_bytes(self) -> int:
        return self._slots.num_bytes + sum(column.nbytes for column in self._columns)

    def _slots_for(self, numbers: Indices) -> Indices:
        """A slot for every row without values, by its negative number: the slot that the row kept, or a new one."""
        slots = KEPT - numbers
        new = (numbers >= HIDDEN).nonzero()[0]
        self._num_hidden -= len(slots) - len(new)
        if len(new):
            slots[new] = np.arange(self._num_slots, self._num_slots + len(new))
            self._num_slots += len(new)
            self._columns = [grown(column, self._num_slots) for column in self._columns]
        return slots


def grown(array: NDArray[Any], size: int, fill: int | None = None) -> NDArray[Any]:
    """The array with room for `size` entries: at least doubled, so that growth costs O(1) per entry."""
    used = len(array)
    if size <= used:
        return array
    larger = np.empty((max(size, 2 * used), *array.shape[1:]), dtype=array.dtype)
    larger[:used] = array
    if fill is not None:
        larger[used:] = fill
    return larger
