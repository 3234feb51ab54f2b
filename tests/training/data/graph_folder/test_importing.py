"""An import gives the graph, the facts, the notes and the messages that reading the same files gives."""

from __future__ import annotations

import csv
import gzip
import io
import mmap
import random
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from model_store import DataError
from tests.training.data import test_mistakes as mistakes
from tests.training.data.tables import EDGES, NODES, Files, parquet_nodes, read_with_flags, with_line, write_tables
from tests.training.data.test_tables import MIXED
from tests.training.samples import user_arrays
from training.__main__ import train_parser
from training.cli.options import TrainOptions
from training.data.datasets import ogbn
from training.data.facts.data_facts import DataFacts
from training.data.graph_folder import array_import, edge_sorter, large_table, large_tables
from training.data.graph_folder.engine import Engine, open_engine
from training.data.graph_folder.folder import GraphFolder
from training.data.graph_folder.importing import import_graph
from training.data.labelled import LabelledGraph
from training.data.tables.files import open_csv
from training.data.tables.reading import Reading
from training.data.user_data import read_user_data, read_user_graph

FORMS: list[tuple[str, Files]] = [
    ("", {}),
    ("", {"nodes.csv": NODES.replace(",", ";")}),
    ("", {"nodes.csv": NODES.replace(",", " , ")}),
    ("", {"nodes.csv": NODES.replace("\n", "\r\n")}),
    ("", {"nodes.csv": NODES.replace("\n", "\r")}),
    ("", {"nodes.csv": "\n\n" + NODES.replace("\n", "\n\n")}),
    ("", {"nodes.csv": NODES.replace("rock", '"rock ""n, roll"""')}),
    ("", {"nodes.csv": with_line(3, 'n1,21,"rock\nroll",red'), "edges.csv": EDGES.encode("utf-8-sig")}),
    ("", {"nodes.csv.gz": gzip.compress(NODES.encode()), "edges.tsv": EDGES.replace(",", "\t")}),
    ("--label-column genre", {"nodes.csv": NODES.replace("label", "split").replace("blue", "train").replace("red", "val")}),
    ("--unknown-edges drop", {"edges.csv": EDGES + "n1,n99\nn98,n97\n"}),
    ("--encoding utf-16", {"nodes.csv": NODES.encode("utf-16"), "edges.csv": EDGES.encode("utf-16")}),
    ("--task regression --label-column age --category-columns label", {}),
    *(
        (f"--dates days --impute {name}", {"nodes.csv": MIXED, "edges.csv": "u,v\na,b\nc,d\nd,d\nb,a\n"})
        for name in ("mean", "zero", "flag")
    ),
    ("", {"nodes.csv": "id,x,label\n1.0,1,a\n2.0,2,b\n10,3,\n-4,4,a\n", "edges.csv": "source,target\n1,2.0\n10.0, -4 \n"}),
    ("", {"nodes.csv": "id,x,label\n007,1,a\n8,2,b\n9,2,b\n", "edges.csv": "source,target\n007,8\n8,9\n8,9\n"}),
    *(
        (f"--structural {kind}", {"nodes.csv": "id,label\na,x\nb,y\nc,x\n", "edges.csv": "source,target\na,b\nb,c\n"})
        for kind in ("degree", "random")
    ),
    ("", {"edges.csv": "source,target\n"}),
]


def options_of(flags: str) -> TrainOptions:
    return TrainOptions.of(train_parser().parse_args(["--data", "x", *shlex.split(flags)]))


def imported(path: Path, out: Path, flags: str = "") -> LabelledGraph:
    options = options_of(flags)
    import_graph(path, out, options.reading, options.task)
    return read_user_data(out)


def assert_same(data: LabelledGraph, expected: LabelledGraph) -> None:
    assert data.sha256() == expected.sha256()
    for name in ("task", "metric", "class_names", "feature_names", "drawn", "schema", "reading", "notes", "missing_cells"):
        assert getattr(data, name) == getattr(expected, name), name
    ids, others = data.node_ids, expected.node_ids
    if ids is None or others is None:
        assert ids is others
    else:
        assert [array.tobytes() for array in ids.arrays] == [array.tobytes() for array in others.arrays]
    facts, other_facts = (DataFacts.of(graph).to_json() | {"name": ""} for graph in (data, expected))
    assert facts == other_facts
    assert isinstance(data.graph.adjacency.indptr.base, mmap.mmap)


@pytest.mark.parametrize(("flags", "files"), FORMS)
def test_an_import_is_the_graph_of_the_tables(tmp_path: Path, flags: str, files: Files) -> None:
    folder = write_tables(tmp_path / "[pets] *", files)  # characters of a file pattern
    assert_same(imported(folder, tmp_path / "graph", flags), read_with_flags(folder, flags))
    assert not list(tmp_path.glob(".*"))


def test_parquet_columns_of_every_type(tmp_path: Path) -> None:
    columns = {"id": list(range(12)), "genre": pa.array(["a", "b"] * 6).dictionary_encode(), "on": [True, False] * 6}
    for number, (kind, ends) in enumerate((("int32", [0, 3, 5]), ("float64", [1, 11, 1]), ("string", ["0", " 2", "3.0"]))):
        folder = write_tables(tmp_path / str(number), {"nodes.parquet": parquet_nodes(**columns), "edges.csv": EDGES})
        (folder / "edges.csv").unlink()
        edges = pa.table({"from": pa.array(ends, kind), "to": pa.array(ends[::-1], kind)})
        parquet.write_table(edges, folder / "edges.parquet")
        assert_same(imported(folder, tmp_path / f"graph{number}"), read_with_flags(folder))


def test_blocks_chunks_and_ranges_join_seamlessly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_sorter, "CHUNK_EDGES", 3)
    monkeypatch.setattr(edge_sorter.EdgeSorter.__init__, "__defaults__", (4,))
    monkeypatch.setattr(large_tables, "BLOCK_ROWS", 5)
    monkeypatch.setattr(large_table, "BATCH_ROWS", 2)
    monkeypatch.setattr(array_import, "BLOCK_ROWS", 3)
    random_edges = "".join(f"n{left},n{right}\n" for left, right in np.random.default_rng(0).integers(0, 12, (40, 2)))
    folder = write_tables(tmp_path / "pets", {"edges.csv": EDGES + random_edges})
    assert_same(imported(folder, tmp_path / "graph"), read_with_flags(folder))
    np.savez(tmp_path / "graph.npz", **user_arrays())
    assert_same(imported(tmp_path / "graph.npz", tmp_path / "arrays"), read_user_data(tmp_path / "graph.npz"))
    (folder / "edges.csv").write_text(EDGES + random_edges + "n1,N2\n")
    with pytest.raises(DataError) as caught:
        imported(folder, tmp_path / "other")
    with pytest.raises(DataError) as expected:
        read_with_flags(folder)
    assert str(caught.value) == str(expected.value)
    assert "edges.csv line 45" in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "files", "expected"),
    [
        *(("", files, expected) for files, expected in (*mistakes.CELLS, *mistakes.IDS_AND_EDGES)),
        *(("", files, expected) for files, expected in (*mistakes.LABELS, *mistakes.FILES)),
        *mistakes.FLAGS,
    ],
)
def test_a_mistake_has_the_message_of_the_tables(tmp_path: Path, flags: str, files: Files, expected: str) -> None:
    folder = write_tables(tmp_path / "pets", files)
    with pytest.raises(DataError) as caught:
        imported(folder, tmp_path / "graph", flags)
    message = str(caught.value)
    expected = expected.replace("Could not open Parquet input source 'nodes.parquet': ", "")
    assert message == expected or ("without labels" in message and "no column label" in expected)
    if "without labels" not in message:
        assert not (tmp_path / "graph").exists()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(("changes", "expected"), mistakes.NPZ)
def test_a_mistake_in_an_npz_file(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    (tmp_path / "graph.npz").write_bytes(mistakes.npz(**changes))
    with pytest.raises(DataError) as caught:
        imported(tmp_path / "graph.npz", tmp_path / "graph")
    assert str(caught.value) in (expected, "graph was imported without labels: training needs labels")


NPZ: list[dict[str, Any]] = [
    {},
    {"x": np.arange(60).reshape(20, 3)},
    {"y": np.array([[0, 1, np.nan]] * 20), "node_ids": np.array([f"n{node}" for node in range(20)])},
    {"y": np.linspace(0, 1, 20), "split": np.arange(20) % 3},
    {"class_names": np.array(["a", "b", "c"]), "edge_weight": np.ones(40), "more": np.ones(3)},
    {
        "x": None,
        "x_data": np.ones(5),
        "x_indices": np.arange(5),
        "x_indptr": np.r_[0, np.repeat(5, 20)],
        "x_shape": np.array([20, 9]),
    },
    {"edge_index": np.empty((2, 0), dtype=np.int64)},
]


@pytest.mark.parametrize("changes", NPZ)
def test_an_import_is_the_graph_of_an_npz_file(tmp_path: Path, changes: dict[str, Any]) -> None:
    save = np.savez_compressed if "split" in changes else np.savez
    save(tmp_path / "graph.npz", **user_arrays(**changes))
    assert_same(imported(tmp_path, tmp_path / "graph"), read_user_data(tmp_path))


def random_csv(rng: random.Random) -> str:
    cells = ['"a,b"', "x", "", " y ", '"q ""w"" e"', '"two\nlines"', "ä", "'", "#", '"', 'm"n', "\\", "NULL", "1e5", "\t"]
    ends = ["\n"] * 30 + ["\r\n", "\n\n", ",x\n", "\r", " \n", "x\n"]
    return "a,b,c\n" + "".join(",".join(rng.choices(cells, k=3)) + rng.choice(ends) for _ in range(rng.randint(0, 6)))


def test_the_engine_reads_random_csv_as_the_csv_module_does_or_not_at_all(tmp_path: Path) -> None:
    """It may read a delimiter at the end of a row or a space after a quote, which the reader of small tables refuses."""
    rng, agreed = random.Random(0), 0  # noqa: S311
    path, target = tmp_path / "edges.csv", tmp_path / "edges.parquet"
    with open_engine(tmp_path) as engine:
        for _ in range(300):
            text = random_csv(rng)
            path.write_text(text, newline="")
            with open_csv(path, Reading()) as file:
                if not engine.csv_to_parquet(path, file, target):
                    continue
            _, *expected = filter(None, csv.reader(io.StringIO(text, newline=""), skipinitialspace=True))
            assert all(len(row) == 3 or row[3:] == [""] for row in expected), text
            rows = parquet.read_table(target).to_pylist()
            cells = [[(cell or "").strip() for cell in row.values()] for row in rows]
            assert cells == [[cell.strip() for cell in row[:3]] for row in expected], text
            agreed += 1
    assert agreed > 60


def test_a_file_that_the_engine_refuses_is_read_by_the_csv_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_tables(tmp_path / "pets", {})
    monkeypatch.setattr(Engine, "csv_to_parquet", lambda *_: False)
    assert_same(imported(folder, tmp_path / "graph"), read_with_flags(folder))


def test_nodes_without_a_table_come_from_the_edges(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("source,target\nb,a\na,c\nc,c\nd,b\n")
    reading = options_of("--structural random").reading
    manifest = import_graph(tmp_path, tmp_path / "graph", reading)
    user, expected = read_user_graph(tmp_path / "graph"), read_user_graph(tmp_path, reading)
    assert user.node_ids is not None
    assert expected.node_ids is not None
    assert user.node_ids.names(range(4)) == expected.node_ids.names(range(4)) == ["b", "a", "c", "d"]
    assert np.array_equal(user.graph.features, expected.graph.features)
    assert user.graph.adjacency.edge_list == expected.graph.adjacency.edge_list == manifest.given
    with pytest.raises(DataError, match=r"^graph was imported without labels: training needs labels$"):
        read_user_data(tmp_path / "graph")


@pytest.mark.parametrize("name", ["ogbn-arxiv", "ogbn-products", "ogbn-papers100M"])
def test_the_files_of_ogb(tmp_path: Path, root: Path, name: str) -> None:
    folder = root / "ogb" / name.replace("-", "_")
    expected = ogbn.loader(name)(root, 0, 0)
    data = imported(folder, tmp_path / "graph")
    assert data.sha256() == expected.sha256()
    assert (data.task, data.metric) == (expected.task, expected.metric)


def test_flags_and_tasks_belong_to_the_import(tmp_path: Path) -> None:
    folder = write_tables(tmp_path / "pets", {})
    import_graph(folder, tmp_path / "graph")
    for flags, problem in (
        ("--impute mean", "--impute mean: tables are read when they are imported; import them again with these flags"),
        ("--task regression", "graph was imported for multiclass: import the data again with --task regression"),
    ):
        with pytest.raises(DataError, match=f"^{problem}$"):
            read_with_flags(tmp_path / "graph", flags)
    with pytest.raises(DataError, match=r"graph exists: an import does not replace it"):
        import_graph(folder, tmp_path / "graph")
    with pytest.raises(DataError, match=r"^graph is a graph folder already: training reads it as it is$"):
        import_graph(tmp_path / "graph", tmp_path / "other")
    schema = GraphFolder.open(tmp_path / "graph").manifest.features
    other = write_tables(tmp_path / "others", {"nodes.csv": NODES.replace("rock", "soul")})
    import_graph(other, tmp_path / "soul")
    with pytest.raises(DataError, match=r"^soul has other columns or categories than the model reads"):
        read_user_graph(tmp_path / "soul", schema=schema)
