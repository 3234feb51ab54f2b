"""Opens a table whose columns are read one at a time: parquet as it is, CSV after one pass that makes parquet of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from model_store import DataError
from training.data.graph_folder.engine import Engine
from training.data.tables.files import batched, naming_file, open_csv, parquet_names, plain_values
from training.data.tables.reading import Reading
from training.data.tables.table import Table

CHUNK_ROWS = 65_536
BATCH_ROWS = 1 << 20


@dataclass(frozen=True)
class LargeTable(Table):
    """A table on disk. `values` reads a column when it is used, and keeps none."""

    values: Columns

    def parts(self, names: tuple[str, ...]) -> Iterator[Table]:
        """The rows in order, in parts, with these columns."""
        first = 0
        for values in self.values.batches(names):
            count = len(next(iter(values.values())))
            yield Table(self.file, values, self.lines, self.unnamed, count, first)
            first += count


class Columns(Mapping[str, Any]):
    def __init__(self, path: Path, names: list[str]) -> None:
        """`names`: of the columns of the parquet file, in its order."""
        self.path = path
        with parquet.ParquetFile(path) as file:
            stored = file.schema_arrow
            self.count = int(file.metadata.num_rows)
        self.stored = dict(zip(names, stored.names, strict=True))
        self._types = dict(zip(names, stored.types, strict=True))

    def __getitem__(self, name: str) -> Any:
        with naming_file(self.path), parquet.ParquetFile(self.path, memory_map=True) as file:
            column = file.read(columns=[self.stored[name]]).column(0)
        if pa.types.is_string(column.type):
            column = column.cast(pa.large_string())  # the texts of all rows may exceed 2 GB
        return plain_values(column.combine_chunks())

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)

    def type_of(self, name: str) -> Any:
        return plain_values(pa.array([], self._types[name])).type

    def batches(self, names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        with naming_file(self.path), parquet.ParquetFile(self.path) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=[self.stored[name] for name in names]):
                yield {name: plain_values(batch.column(self.stored[name])) for name in names}


@dataclass(frozen=True)
class CsvLines:
    """The line of a row, found by reading the file again: only messages need it."""

    path: Path
    reading: Reading

    def __getitem__(self, row: int) -> int:
        with open_csv(self.path, self.reading) as file:
            return next(islice(file.rows, row, None))[0]


def open_large_table(path: Path, reading: Reading, engine: Engine, scratch: Path) -> LargeTable:
    """Raises DataError, with the same messages as for small tables.

    Args:
        scratch: a folder for the parquet file that is made of a CSV file.
    """
    if path.is_dir():
        raise DataError(f"{path.name} is a folder, expected a file")
    with naming_file(path):
        if path.suffix.lower() == ".parquet":
            with parquet.ParquetFile(path) as file:
                names, unnamed = parquet_names(path.name, file.schema_arrow.names)
            columns = Columns(path, names)
            return LargeTable(path.name, columns, None, unnamed, columns.count)
        target = scratch / f"{path.name}.parquet"
        with open_csv(path, reading) as text:
            names, unnamed = text.names, text.unnamed
            is_utf8 = reading.encoding in (None, "utf-8")
            if not (is_utf8 and engine.csv_to_parquet(path.resolve(), text, target)):
                _to_parquet(text.rows, len(names), target)
        columns = Columns(target, names)
        return LargeTable(path.name, columns, CsvLines(path, reading), unnamed, columns.count)


def _to_parquet(rows: Iterator[tuple[int, list[str]]], width: int, target: Path) -> None:
    schema = pa.schema([(f"c{place}", pa.large_string()) for place in range(width)])
    with parquet.ParquetWriter(target, schema) as writer:
        for batch in batched(rows, CHUNK_ROWS):
            columns = zip(*(row for _, row in batch), strict=True)
            writer.write_batch(pa.record_batch([pa.array(column, pa.large_string()) for column in columns], schema=schema))
