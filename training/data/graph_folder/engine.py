"""DuckDB, which reads tables and looks up ids without loading them: it spills to disk beyond its memory limit.

docs/decisions.md compares it with Polars, which reads a row with missing cells without an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from training.data.tables.files import CsvFile

MEMORY_LIMIT = "1GB"
BATCH_ROWS = 1 << 20


class Engine:
    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    def csv_to_parquet(self, source: Path, file: CsvFile, target: Path) -> bool:
        """Writes the cells of a CSV file as texts in the columns c0, c1, ... Returns False if it cannot read the file.

        The caller then reads it with the reader of small tables, which knows what is wrong with it.
        """
        if any("\n" in name for name in file.names):
            return False  # the lines of the header cannot be counted
        options = {
            "auto_detect": "false",
            "header": "false",
            "skip": str(file.header_line),
            "delim": quoted(file.delimiter),
            "quote": "'\"'",
            "escape": "'\"'",
            "comment": "''",
            "strict_mode": "true",
            "null_padding": "false",
            "columns": "{" + ", ".join(f"'c{place}': 'VARCHAR'" for place in range(len(file.names))) + "}",
        }
        arguments = ", ".join(f"{name} = {value}" for name, value in options.items())
        try:
            cells = f"SELECT * FROM read_csv({file_name(source)}, {arguments})"
            self._connection.execute(f"COPY ({cells}) TO {quoted(str(target))} (FORMAT parquet)")
        except (duckdb.Error, UnicodeError):
            target.unlink(missing_ok=True)
            return False
        return True

    def batches(self, query: str, tables: Mapping[str, Any] | None = None) -> Iterator[pa.RecordBatch]:
        """The result of a query in parts, in any order. `tables` are pyarrow tables that the query names."""
        for name, table in (tables or {}).items():
            self._connection.register(name, table)
        yield from self._connection.sql(query).to_arrow_reader(BATCH_ROWS)


@contextmanager
def open_engine(scratch: Path) -> Iterator[Engine]:
    """`scratch` is a folder for data beyond the memory limit."""
    with duckdb.connect(":memory:") as connection:
        connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
        connection.execute(f"SET temp_directory = {quoted(str(scratch / 'spill'))}")
        connection.execute(f"SET threads = {min(4, len(os.sched_getaffinity(0)))}")
        connection.execute("SET autoinstall_known_extensions = false")  # nothing is fetched from the network
        yield Engine(connection)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def file_name(path: Path) -> str:
    """The path of a file as an SQL string in which `*`, `?` and `[` have no special meaning."""
    return quoted(re.sub(r"([*?\[])", r"[\1]", str(path.resolve())))
