"""A table: columns by name, in memory or read one at a time, and the place of every cell as a user finds it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from model_store import DataError
from model_store.suggestions import did_you_mean

MISSING_WORDS = ("", "na", "n/a", "#n/a", "nan", "null", "none")
"""Texts that stand for a missing value, in lower case."""
MAX_NAMES_SHOWN = 12


class Lines(Protocol):
    def __getitem__(self, row: int, /) -> Any: ...


@dataclass(frozen=True)
class Table:
    file: str
    """The name of the file, for messages."""
    values: Mapping[str, Any]
    """By column a pyarrow array: large_string (trimmed), bool, integers, float64, date32, or a type that nothing can use."""
    lines: Lines | None
    """The line on which a row begins, as an editor counts; None if the file has rows instead of lines."""
    unnamed: frozenset[str]
    """Columns to which the file gives no name: usually the row numbers that pandas writes."""
    count: int
    first_row: int = 0
    """The number of the first row, if this is a part of a table."""

    def __len__(self) -> int:
        return self.count

    def column(self, name: str) -> Column:
        return Column(self, name, self.values[name])

    def place(self, row: int) -> str:
        row += self.first_row
        return f"{self.file} row {row + 1}" if self.lines is None else f"{self.file} line {self.lines[row]}"

    @property
    def names_text(self) -> str:
        return list_names(self.values)

    def find(self, name: str, flag: str) -> str:
        """Returns the name of a column that a flag chooses. Raises DataError if there is none."""
        if name in self.values:
            return name
        raise DataError(
            f"{self.file} has no column {name!r} ({flag}); it has {self.names_text}{did_you_mean(name, self.values, repr)}"
        )


@dataclass(frozen=True)
class Column:
    table: Table
    name: str
    values: Any

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_text(self) -> bool:
        return bool(pa.types.is_large_string(self.values.type))

    def missing(self) -> NDArray[np.bool_]:
        """True for every cell that is empty or holds one of MISSING_WORDS."""
        missing = self.values.is_null()
        if self.is_text:
            words = pc.is_in(pc.utf8_lower(self.values), value_set=pa.array(MISSING_WORDS, pa.large_string()))
            missing = pc.or_(missing, words)
        return to_numpy(missing).astype(bool)

    def texts(self) -> Any:
        """The cells as a pyarrow array of texts. A whole number has no decimal point, also if its file has floats."""
        if self.is_text:
            return self.values
        if pa.types.is_floating(self.values.type):
            numbers = (None if number is None else _number_text(number) for number in self.values.to_pylist())
            return pa.array(numbers, pa.large_string())
        try:
            return self.values.cast(pa.large_string())
        except pa.ArrowException:
            raise self.error(f"holds {self.values.type}, expected text or numbers") from None

    def encoded(self) -> tuple[list[str], NDArray[np.int64]]:
        """The different texts of the column, and for every row the place of its text; -1 for a missing value."""
        encoded = pc.if_else(pa.array(self.missing()), None, self.values).dictionary_encode()
        different = Column(self.table, self.name, encoded.dictionary).texts().to_pylist()
        return different, to_numpy(pc.fill_null(encoded.indices, -1)).astype(np.int64)

    def error(self, problem: str, row: int | None = None) -> DataError:
        """A DataError about the column, or about its cell in a row."""
        place = self.table.file if row is None else self.table.place(row)
        return DataError(f"{place}, column {self.name}{' ' if row is None else ': '}{problem}")

    def cell(self, row: int) -> str:
        """The cell as messages show it."""
        value = self.values[row].as_py()
        return "an empty cell" if value in (None, "") else shorten(value)


def to_numpy(array: Any) -> NDArray[Any]:
    result: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return result


def shorten(value: Any) -> str:
    """A value as messages show it: quoted if it is text, and short."""
    text = value if isinstance(value, str) else str(value)
    text = text if len(text) <= 40 else f"{text[:37]}..."
    return repr(text) if isinstance(value, str) else text


def list_names(names: Iterable[str]) -> str:
    listed = [name or "''" for name in names]
    more = len(listed) - MAX_NAMES_SHOWN
    return ", ".join(listed[:MAX_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _number_text(number: float) -> str:
    return str(int(number)) if number % 1 == 0 else repr(number)
