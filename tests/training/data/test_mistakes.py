"""Mistakes in users' files, each with its complete message: the file, the line, the column, the cell, and what to do."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store import DataError
from tests.training.data.tables import (
    EDGES,
    NODES,
    Files,
    parquet_nodes,
    read_with_flags,
    with_column,
    with_line,
    write_tables,
)
from tests.training.samples import user_arrays

NUMBERED = "id,age,label\n" + "".join(f"{node},{node},{node % 2}\n" for node in range(12))
LEAVE_OUT = "or --ignore-columns age leaves the column out"
NOT_A_NUMBER = f"correct it, {LEAVE_OUT}, or --category-columns age makes categories of its cells"
FILL_IN = f"--impute mean, zero or flag fills them in, {LEAVE_OUT}"
SUFFIXES = ".csv, .tsv, .csv.gz, .tsv.gz, .parquet"


def npz(**changes: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **user_arrays(**changes))
    return stream.getvalue()


def numbered(row: int, column: int, cell: str) -> str:
    cells = NUMBERED.splitlines()[row - 1].split(",")
    cells[column] = cell
    return with_line(row, ",".join(cells), NUMBERED)


CELLS = [
    (
        {"nodes.csv": with_line(5, "n3,old,rock,red")},
        f"nodes.csv line 5, column age: 'old' is not a number (1 of 12 cells of the column): {NOT_A_NUMBER}",
    ),
    (  # a quoted cell with a line break moves all later lines
        {"nodes.csv": with_line(3, 'n1,21,"rock\nroll",red', with_line(7, "n5,$5,rock,red"))},
        f"nodes.csv line 8, column age: '$5' is not a number (1 of 12 cells of the column): {NOT_A_NUMBER}",
    ),
    (
        {"nodes.csv": with_line(5, "n3,,rock,red")},
        f"nodes.csv line 5, column age: an empty cell is a missing value (1 of 12 cells of the column): {FILL_IN}",
    ),
    (
        {"nodes.csv": with_line(5, "n3,n/a,rock,red", with_line(9, "n7,NaN,rock,red"))},
        f"nodes.csv line 5, column age: 'n/a' is a missing value (2 of 12 cells of the column): {FILL_IN}",
    ),
    (
        {"nodes.parquet": parquet_nodes(age=[1.0, float("nan"), *map(float, range(10))])},
        f"nodes.parquet row 2, column age: an empty cell is a missing value (1 of 12 cells of the column): {FILL_IN}",
    ),
    (
        {"nodes.csv": with_line(5, "n3,1e39,rock,red")},
        "nodes.csv line 5, column age: '1e39' is not a number between -3.4e38 and 3.4e38",
    ),
    (
        {"nodes.csv": NODES.replace(",", ";").replace(";2", ";2,")},
        "nodes.csv line 2, column age: '2,0' has a decimal comma: --decimal-comma reads it as a number",
    ),
    (
        {"nodes.csv": with_column("since", ["2020-01-31"] * 12)},
        "nodes.csv line 2, column since: '2020-01-31' is a date, expected a number: --dates days turns dates "
        "into days since "
        "1970-01-01, or --ignore-columns since leaves the column out",
    ),
    (
        {"nodes.csv": with_column("since", ["31.1.2020"] * 12)},
        "nodes.csv line 2, column since: '31.1.2020' looks like a date, expected dates as 2024-01-31: convert them, or "
        "--ignore-columns since leaves the column out",
    ),
    (
        {"nodes.csv": with_column("bio", [f"I am {node}" for node in range(12)])},
        "nodes.csv, column bio holds text with 12 different values in 12 rows, expected numbers or at most 50 "
        "categories that "
        "repeat: --ignore-columns bio leaves the column out, or --category-columns bio makes a feature of every value",
    ),
    (
        {"nodes.csv": with_column("empty", [""] * 12)},
        "nodes.csv, column empty has no values: --ignore-columns empty leaves the column out",
    ),
    (
        {"nodes.parquet": parquet_nodes(vector=[[1.0, 2.0]] * 12)},
        "nodes.parquet, column vector holds list<element: double>, expected numbers, text, booleans or dates: "
        "--ignore-columns vector leaves the column out",
    ),
]
IDS_AND_EDGES = [
    (
        {"nodes.csv": with_line(5, "n0,23,rock,red")},
        "nodes.csv line 5, column id: 'n0' is also the id on line 2, expected one row per node",
    ),
    ({"nodes.csv": with_line(5, " ,23,rock,red")}, "nodes.csv line 5, column id: an empty cell, expected the id of a node"),
    (
        {"nodes.csv": numbered(4, 0, "1.23457E+18")},
        "nodes.csv line 4, column id: '1.23457E+18' is a number that a spreadsheet has shortened, expected the whole id: "
        "export ids as text",
    ),
    (
        {"nodes.parquet": parquet_nodes(id=[node + 0.5 for node in range(12)])},
        "nodes.parquet row 1, column id: 0.5 is a float that is no exact whole number, expected an id: write "
        "ids as integers "
        "or text",
    ),
    (
        {"edges.csv": f"{EDGES}n3,n99\n"},
        "edges.csv line 5, column target: 'n99' is not the id of a node (1 of 4 edges name such ids): add the node, or "
        "--unknown-edges drop leaves such edges out",
    ),
    (
        {
            "nodes.csv": "id,age,label\n" + "".join(f"{node:03},{node},{node % 2}\n" for node in range(12)),
            "edges.csv": "u,v\n7,8\n",
        },
        "edges.csv line 2, column u: '7' is not the id of a node (1 of 1 edges name such ids); did you mean '007'?",
    ),
    (
        {"edges.csv": "source,target\n0,1\n1,2\n"},
        "edges.csv line 2, column source: '0' is not the id of a node (2 of 2 edges name such ids): --id-column chooses the "
        "column of the ids, --source-column and --target-column those of the edges",
    ),
    ({"edges.csv": f"{EDGES}n3,\n"}, "edges.csv line 5, column target: an empty cell, expected the id of a node"),
    (
        {"edges.csv": "source,target,weight\nn0,n1,0.5\n"},
        "edges.csv has more columns than source and target (weight), but edges cannot have weights or features; leave the "
        "others out with --ignore-columns weight",
    ),
    (
        {"edges.csv": "source,target,weight,since\nn0,n1,0.5,2020\n"},
        "edges.csv has more columns than source and target (weight, since), but edges cannot have weights or features; "
        "leave the others out with --ignore-columns weight,since",
    ),
    (
        {"edges.csv": "source\nn0\n"},
        "edges.csv has the columns source, expected one for each end of an edge: --source-column and "
        "--target-column choose them",
    ),
    (
        {"edges.csv": "0,1\n1,2\n"},
        "edges.csv line 1 has numbers (0, 1), expected the names of the columns: add a line such as source,target",
    ),
]
LABELS = [
    (
        {"nodes.csv": NODES.replace("label", "colour")},
        "nodes.csv has no column label, class, y or target; it has id, age, genre, colour: --label-column "
        "chooses the labels",
    ),
    (
        {"nodes.csv": with_column("class", range(12))},
        "nodes.csv has the columns label and class, which may both be the labels: --label-column label makes "
        "class a feature, "
        "unless --ignore-columns class leaves it out",
    ),
    (
        {"nodes.csv": NODES.replace("red", "blue")},
        "nodes.csv, column label has the single class 'blue', expected at least two",
    ),
    (
        {"nodes.csv": "id,age,label\n" + "".join(f"n{node},{node},{node}\n" for node in range(12))},
        "nodes.csv, column label has a different label on each of 12 nodes, expected classes that repeat: --task regression "
        "predicts numbers, --label-column chooses another column",
    ),
    (
        {"nodes.csv": "id,age,label\n" + "".join(f"n{node},{node},\n" for node in range(12))},
        "nodes.csv, column label has no labels, expected a class or a number in some rows",
    ),
    (
        {"nodes.csv": with_column("split", ["train", "val", "dev"] * 4)},
        "nodes.csv line 4, column split: 'dev', expected train, val, test or an empty cell",
    ),
    (
        {"nodes.csv": "id,label\n" + "".join(f"n{node},{node % 2}\n" for node in range(12))},
        "pets has no features: no column besides those of the id, the label and the split; "
        "--structural degree makes a feature of the number of neighbours, --structural random also of which they are",
    ),
    (
        {"nodes.csv": NODES.replace("id,", "key,")},
        "nodes.csv has no column id, node_id, nodeid, node or name; it has key, age, genre, label: --id-column "
        "chooses the ids; --id-column key? It has 'n0', the first id in the table of edges",
    ),
    (
        {"nodes.csv": NODES.replace("id,", "key,"), "edges.csv": "source,target\nx,y\n"},
        "nodes.csv has no column id, node_id, nodeid, node or name; it has key, age, genre, label: --id-column "
        "chooses the ids",
    ),
]
FILES = [
    ({"nodes.csv": ""}, "nodes.csv is empty, expected a first line with the names of the columns"),
    ({"nodes.csv": "\n\n"}, "nodes.csv has only empty lines, expected a first line with the names of the columns"),
    ({"nodes.csv": "id,age,label\n"}, "nodes.csv has the names of the columns, but no rows"),
    (
        {"nodes.csv": with_line(5, "n3,23,rock,roll,red")},
        "nodes.csv line 5 has 5 cells separated by ',', the header has 4: quote a cell that contains ','",
    ),
    (
        {"nodes.csv": with_line(5, "n3,23,rock")},
        "nodes.csv line 5 has 3 cells separated by ',', the header has 4: write an empty cell for a missing value",
    ),
    (
        {"nodes.csv": with_line(5, 'n3,23,"rock,red')},
        'nodes.csv line 5: a double quote opens a cell that is never closed: write a quote inside a quoted cell as ""',
    ),
    (
        {"nodes.csv": with_line(5, 'n3,23,"rock"n roll,red')},
        'nodes.csv line 5: text follows the closing quote of a cell: write a quote inside a quoted cell as ""',
    ),
    ({"nodes.csv": NODES.replace("genre", "age")}, "nodes.csv line 1: columns 2 and 3 are both called 'age': rename one"),
    (
        {"nodes.csv": "".join(f"{row if row else ''},{line}\n" for row, line in enumerate(NODES.splitlines()))},
        "nodes.csv has a column without a name, here 'column 1', often the row numbers that pandas writes: "
        "write the file with "
        "index=False, or --ignore-columns 'column 1' leaves it out",
    ),
    (
        {"edges.csv": "source target\nn0 n1\n"},
        "edges.csv line 1 has one column, 'source target', with the delimiter ',': choose another delimiter with "
        "--delimiter, perhaps space",
    ),
    (
        {"nodes.csv": NODES.encode("utf-16")},
        "nodes.csv is UTF-16, expected UTF-8: save it as UTF-8, or give --encoding utf-16",
    ),
    (
        {"nodes.csv": with_line(5, "n3,23,größer,red").encode("latin-1")},
        "nodes.csv line 5: the byte 0xf6 after 'n3,23,gr' is not UTF-8: save the file as UTF-8, or give its encoding, for "
        "example --encoding cp1252 (Western Windows) or latin-1",
    ),
    ({"nodes.csv": b"PK\x03\x04"}, "nodes.csv is a zip or Excel file: save the sheet as CSV"),
    ({"nodes.csv": gzip.compress(NODES.encode())}, "nodes.csv is compressed with gzip: rename it to .csv.gz"),
    ({"nodes.csv.gz": NODES}, "nodes.csv.gz cannot be read: Not a gzipped file (b'id')"),
    (
        {"nodes.parquet": b"hello"},
        "nodes.parquet cannot be read: Could not open Parquet input source 'nodes.parquet': Parquet file size is 5 bytes, "
        "smaller than the minimum file footer (8 bytes)",
    ),
    (
        {"nodes.csv": NODES, "nodes.parquet": parquet_nodes()},
        "pets has nodes.csv and nodes.parquet: keep one table of nodes",
    ),
    (
        {"nodes.xlsx": b"PK", "edges.xlsx": b"PK"},
        f"pets has no table of edges, expected edges with one of {SUFFIXES}; it has edges.xlsx, nodes.xlsx; "
        "save the sheets of "
        "a workbook as CSV",
    ),
]
NPZ = [
    ({"y": np.arange(19)}, "graph.npz: y has shape (19,), expected labels of 20 nodes for multiclass"),
    ({"y": None}, "graph.npz has no array y: training needs labels"),
    (
        {"y": np.array(["red", "blue"] * 10)},
        "graph.npz: y holds <U4, expected classes 0, 1, 2 ... and -1 for unlabelled nodes; training.save_graph makes "
        "classes of texts",
    ),
    (
        {"y": np.array(["red", None] * 10, dtype=object)},
        "graph.npz: y holds Python objects, which are pickles and never loaded: save it as an array of numbers or of texts, "
        "with a number or a text in every place",
    ),
    (
        {"edge_index": np.array([[0, 1], [1, 2], [2, 3]])},
        "graph.npz: edge_index has shape (3, 2), expected (2, number of edges); transpose it",
    ),
    ({"node_ids": np.array(["a"] * 20)}, "graph.npz: node_ids: rows 0 and 1 have the same id 'a'"),
    ({"edge_index": np.array([[0, 20], [1, 2]])}, "graph.npz: edge 1 is 20 - 2, expected node ids from 0 to 19"),
    (
        {"x": np.full((20, 3), np.nan)},
        "graph.npz: features hold NaN, infinity or more than 3.4e38 (row 0, column 0)",
    ),
]
FLAGS = [
    ("--id-column ID", {}, "nodes.csv has no column 'ID' (--id-column); it has id, age, genre, label; did you mean 'id'?"),
    (
        "--ignore-columns gender",
        {},
        "--ignore-columns: no table has a column 'gender'; there are id, age, genre, label, source, target; did "
        "you mean 'genre'?",
    ),
    ("--feature-columns age,label", {}, "nodes.csv: --feature-columns has 'label', which is the id, the label or the split"),
    (
        "--dates days",
        {"nodes.csv": with_column("since", ["2020-01-31"] * 11 + ["2020-02-31"])},
        "nodes.csv line 13, column since: '2020-02-31', expected a date such as 2024-01-31",
    ),
    (
        "--task regression",
        {"nodes.csv": numbered(6, 2, "high"), "edges.csv": "source,target\n0,1\n"},
        "nodes.csv line 6, column label: 'high' is not a finite number, which regression predicts",
    ),
    (
        "--task multilabel",
        {},
        "nodes.csv, column label has one label per node; multi-label data needs graph.npz with a 2-D y",
    ),
]


def message(folder: Path, files: Files, flags: str = "") -> str:
    with pytest.raises(DataError) as caught:
        read_with_flags(write_tables(folder / "pets", files), flags)
    return str(caught.value)


@pytest.mark.parametrize(("files", "expected"), [*CELLS, *IDS_AND_EDGES, *LABELS, *FILES])
def test_a_mistake_in_a_table(tmp_path: Path, files: Files, expected: str) -> None:
    assert message(tmp_path, files) == expected


@pytest.mark.parametrize(("flags", "files", "expected"), FLAGS)
def test_a_mistake_with_a_flag(tmp_path: Path, flags: str, files: Files, expected: str) -> None:
    assert message(tmp_path, files, flags) == expected


@pytest.mark.parametrize(("changes", "expected"), NPZ)
def test_a_mistake_in_an_npz_file(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    (tmp_path / "graph.npz").write_bytes(npz(**changes))
    for path in (tmp_path, tmp_path / "graph.npz"):
        with pytest.raises(DataError) as caught:
            read_with_flags(path)
        assert str(caught.value) == expected


def test_a_mistake_in_the_path(tmp_path: Path) -> None:
    folder = write_tables(tmp_path / "pets", {})
    for path, expected in (
        (tmp_path / "pest", f"there is no file or folder {tmp_path / 'pest'}; did you mean 'pets'?"),
        (folder / "nodes.csv", "nodes.csv is one table: give the folder that holds the tables nodes and edges"),
        (tmp_path, f"{tmp_path.name} has no table of edges, expected edges with one of {SUFFIXES}; it has pets"),
    ):
        with pytest.raises(DataError) as caught:
            read_with_flags(path)
        assert str(caught.value) == expected
    (folder / "graph.npz").write_bytes(npz())
    with pytest.raises(DataError, match=r"^pets has graph.npz and nodes.csv: keep one of them$"):
        read_with_flags(folder)
    with pytest.raises(DataError, match=r"^--id-column key: for tables only, and graph.npz is none$"):
        read_with_flags(folder / "graph.npz", "--id-column key")
    (folder / "graph.npz").unlink()
    (folder / "nodes.csv").unlink()
    (folder / "nodes.csv").mkdir()
    with pytest.raises(DataError, match=r"^nodes.csv is a folder, expected a file$"):
        read_with_flags(folder)
    (folder / "nodes.csv").rmdir()
    with pytest.raises(
        DataError, match=r"^edges.csv is the only table, so no node has a label: training needs a table of nodes$"
    ):
        read_with_flags(folder)
