"""Finds and reads table files: CSV in its many forms, compressed or not, and parquet."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from model_store import DataError
from training.data.tables.reading import Reading
from training.data.tables.table import Table, list_names, shorten

SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
DELIMITERS = ",;\t|"
"""The delimiters that are detected; --delimiter takes any."""
CHUNK_ROWS = 10_000
PANDAS_INDEX = re.compile(r"Unnamed: \d+|__index_level_\d+__")
NUMBER = re.compile(r"[+-]?\d+([.,]\d*)?")
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
OTHER_FILES = {
    b"PK": "is a zip or Excel file: save the sheet as CSV",
    b"PAR1": "is a parquet file: rename it to .parquet",
    b"\x1f\x8b": "is compressed with gzip: rename it to .csv.gz",
}


def find_table(folder: Path, name: str) -> Path | None:
    """The file of a table in a folder; None if there is none."""
    names = {f"{name}{suffix}" for suffix in SUFFIXES}
    paths = sorted(path for path in folder.iterdir() if path.name.lower() in names)
    if len(paths) > 1:
        raise DataError(f"{folder.name} has {' and '.join(path.name for path in paths)}: keep one table of {name}")
    return paths[0] if paths else None


def describe_missing_table(folder: Path, name: str) -> str:
    files = sorted(path.name for path in folder.iterdir())
    hint = "; save the sheets of a workbook as CSV" if any(".xls" in file for file in files) else ""
    content = f"it has {list_names(files)}" if files else "it is empty"
    return f"{folder.name} has no table of {name}, expected {name} with one of {', '.join(SUFFIXES)}; {content}{hint}"


def read_table(path: Path, reading: Reading) -> Table:
    """Reads a table.

    Raises:
        DataError: names the file, the line and what is wrong with it.
    """
    if path.is_dir():
        raise DataError(f"{path.name} is a folder, expected a file")
    with naming_file(path):
        return _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path, reading)


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Converts errors of reading a file to a DataError that names it."""
    try:
        yield
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise DataError(f"{path.name} cannot be read: {reason.replace(str(path), path.name)}") from error


def _read_parquet(path: Path) -> Table:
    content = parquet.read_table(path)
    names, unnamed = parquet_names(path.name, content.column_names)
    columns = {name: plain_values(content.column(place).combine_chunks()) for place, name in enumerate(names)}
    return Table(path.name, columns, None, unnamed, len(content))


def parquet_names(file: str, header: list[str]) -> tuple[list[str], frozenset[str]]:
    """The names of the columns, and the columns that the file does not name."""
    names = _checked_names(file, "", header)
    return names, _unnamed(header, names)


def plain_values(array: Any) -> Any:
    """The array in one of the types that `Table` names, or as it is."""
    types, kind = pa.types, array.type
    if types.is_dictionary(kind):
        return plain_values(array.dictionary_decode())
    if types.is_string(kind) or types.is_large_string(kind) or types.is_null(kind):
        return pc.utf8_trim_whitespace(array.cast(pa.large_string()))
    if types.is_floating(kind) or types.is_decimal(kind):
        numbers = array.cast(pa.float64())
        return pc.if_else(pc.is_nan(numbers), None, numbers)
    if types.is_timestamp(kind) or types.is_date(kind):
        return array.cast(pa.date32(), safe=False)
    return array


@dataclass(frozen=True)
class CsvFile:
    """A CSV file whose header has been read."""

    names: list[str]
    unnamed: frozenset[str]
    delimiter: str
    header_line: int
    rows: Iterator[tuple[int, list[str]]]
    """Each with the line on which it begins. Raises DataError for a row that does not have one cell per column."""


@contextmanager
def open_csv(path: Path, reading: Reading) -> Iterator[CsvFile]:
    """Raises DataError; also while the rows are read."""
    open_bytes = gzip.open if path.suffix.lower() == ".gz" else Path.open
    with open_bytes(path, "rb") as stream:
        start = stream.read(4)
        stream.seek(0)
        _check_start(path.name, start, reading)
        lines = io.TextIOWrapper(stream, reading.encoding or "utf-8", newline="")
        try:
            yield _read_header(path.name, lines, reading)
        except UnicodeError as error:
            stream.seek(0)
            raise _encoding_error(path.name, stream, reading.encoding or "utf-8", error) from error


def _read_csv(path: Path, reading: Reading) -> Table:
    with open_csv(path, reading) as file:
        lines: list[int] = []
        chunks = [_to_arrays([], len(file.names))]
        for rows in batched(file.rows, CHUNK_ROWS):
            lines += [line for line, _ in rows]
            chunks.append(_to_arrays([row for _, row in rows], len(file.names)))
    columns = {name: pa.concat_arrays(arrays) for name, arrays in zip(file.names, zip(*chunks, strict=True), strict=True)}
    return Table(path.name, columns, np.array(lines, dtype=np.int64), file.unnamed, len(lines))


def batched(rows: Iterator[Any], count: int) -> Iterator[list[Any]]:
    while batch := list(islice(rows, count)):
        yield batch


def _check_start(file: str, start: bytes, reading: Reading) -> None:
    if not start:
        raise DataError(f"{file} is empty, expected a first line with the names of the columns")
    for magic, meaning in OTHER_FILES.items():
        if start.startswith(magic):
            raise DataError(f"{file} {meaning}")
    if reading.encoding is None and (start.startswith(UTF_16) or b"\0" in start):
        raise DataError(f"{file} is UTF-16, expected UTF-8: save it as UTF-8, or give --encoding utf-16")


def _encoding_error(file: str, stream: Any, encoding: str, error: UnicodeError) -> DataError:
    """Returns an error that names the first line that is not valid in the encoding."""
    for number, line in enumerate(stream, 1):
        try:
            line.decode(encoding)
        except UnicodeDecodeError as wrong:
            byte = f"the byte 0x{line[wrong.start]:02x} after {shorten(line[: wrong.start].decode(encoding)[-20:])}"
            return DataError(
                f"{file} line {number}: {byte} is not {encoding.upper()}: save the file as UTF-8, or give its encoding, "
                "for example --encoding cp1252 (Western Windows) or latin-1"
            )
    return DataError(f"{file} is not {encoding.upper()}: {error}")


def _read_header(file: str, stream: Any, reading: Reading) -> CsvFile:
    first = stream.readline().removeprefix("\ufeff")
    delimiter = reading.delimiter or _detect_delimiter(first)
    rows = _rows(file, csv.reader(chain([first], stream), delimiter=delimiter, skipinitialspace=True, strict=True))
    header_line, header = next(rows, (1, []))
    if not header:
        raise DataError(f"{file} has only empty lines, expected a first line with the names of the columns")
    if len(header) == 1 and (others := [other for other in f"{DELIMITERS} " if other in header[0]]):
        column = f"one column, {shorten(header[0])}, with the delimiter {_describe_delimiter(delimiter)}"
        hint = f"choose another delimiter with --delimiter, perhaps {_describe_delimiter(others[0])}"
        raise DataError(f"{file} line {header_line} has {column}: {hint}")
    names = _checked_names(file, f" line {header_line}", header)
    unnamed = _unnamed([name.strip() for name in header], names)
    return CsvFile(names, unnamed, delimiter, header_line, _checked_rows(file, rows, names, delimiter))


def _checked_rows(file: str, rows: Iterator[Any], names: list[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    for line, row in rows:
        if len(row) != len(names):
            raise DataError(_describe_ragged_row(file, line, row, names, delimiter))
        yield line, row


def _to_arrays(rows: list[list[str]], width: int) -> list[Any]:
    columns = zip(*rows, strict=True) if rows else [()] * width
    return [pc.utf8_trim_whitespace(pa.array(column, pa.large_string())) for column in columns]


def _detect_delimiter(first_line: str) -> str:
    counts = Counter(re.sub(r'"[^"]*"', "", first_line))
    return max(DELIMITERS, key=lambda delimiter: counts[delimiter])


def _describe_delimiter(delimiter: str) -> str:
    return {"\t": "tab", " ": "space"}.get(delimiter, repr(delimiter))


def _rows(file: str, reader: Any) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not empty, each with the line on which it begins: a quoted cell may span lines."""
    begin = 1
    try:
        for row in reader:
            if row:
                yield begin, row
            begin = reader.line_num + 1
    except csv.Error as error:
        reason = str(error)
        if "unexpected end" in reason or "field limit" in reason:
            reason = 'a double quote opens a cell that is never closed: write a quote inside a quoted cell as ""'
        elif "expected after" in reason:
            reason = 'text follows the closing quote of a cell: write a quote inside a quoted cell as ""'
        raise DataError(f"{file} line {begin}: {reason}") from error


def _describe_ragged_row(file: str, line: int, row: list[str], names: list[str], delimiter: str) -> str:
    separator = _describe_delimiter(delimiter)
    hint = f"quote a cell that contains {separator}" if len(row) > len(names) else "write an empty cell for a missing value"
    return f"{file} line {line} has {len(row)} cells separated by {separator}, the header has {len(names)}: {hint}"


def _checked_names(file: str, place: str, header: list[str]) -> list[str]:
    names = [name.strip() or f"column {number}" for number, name in enumerate(header, 1)]
    if place and all(NUMBER.fullmatch(name.strip()) for name in header):
        example = "source,target" if file.startswith("edges") else "id,label,..."
        numbers = list_names(names[:4])
        raise DataError(
            f"{file}{place} has numbers ({numbers}), expected the names of the columns: add a line such as {example}"
        )
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        places = " and ".join(str(number) for number, name in enumerate(names, 1) if name == repeated[0])
        raise DataError(f"{file}{place}: columns {places} are both called {repeated[0]!r}: rename one")
    return names


def _unnamed(header: list[str], names: list[str]) -> frozenset[str]:
    return frozenset(name for cell, name in zip(header, names, strict=True) if not cell or PANDAS_INDEX.fullmatch(cell))
