"""Folders of small tables, and reading them with flags as the command does."""

from __future__ import annotations

import io
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from training.__main__ import train_parser
from training.cli.options import TrainOptions
from training.data.labelled import LabelledGraph
from training.data.user_data import read_user_data

NODES = "id,age,genre,label\n" + "".join(
    f"n{node},{20 + node},{('jazz', 'rock')[node % 2]},{('blue', 'red', 'red')[node % 3]}\n" for node in range(12)
)
EDGES = "source,target\nn0,n1\nn1,n2\nn2,n11\n"
Files = Mapping[str, str | bytes]


def with_line(number: int, text: str, table: str = NODES) -> str:
    """The table with another text as a line, counted from 1."""
    lines = table.splitlines()
    lines[number - 1] = text
    return "\n".join(lines) + "\n"


def with_column(name: str, cells: Sequence[Any], table: str = NODES) -> str:
    lines = zip(table.splitlines(), [name, *cells], strict=True)
    return "".join(f"{line},{cell}\n" for line, cell in lines)


def parquet_nodes(**columns: Any) -> bytes:
    table = {"id": [f"n{node}" for node in range(12)], "age": list(range(12)), "label": ["red", "blue"] * 6} | columns
    stream = io.BytesIO()
    parquet.write_table(pa.table(table), stream)
    return stream.getvalue()


def write_tables(folder: Path, files: Files) -> Path:
    """Writes files into a folder. The tables above stand in for a table that is not given."""
    folder.mkdir(parents=True, exist_ok=True)
    given = {name.lower().partition(".")[0] for name in files}
    tables = {
        name: text for name, text in (("nodes.csv", NODES), ("edges.csv", EDGES)) if name.partition(".")[0] not in given
    }
    for name, content in (tables | dict(files)).items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def read_with_flags(path: Path, flags: str = "") -> LabelledGraph:
    options = TrainOptions.of(train_parser().parse_args(["--data", str(path), *shlex.split(flags)]))
    return read_user_data(path, options.task, reading=options.reading)
