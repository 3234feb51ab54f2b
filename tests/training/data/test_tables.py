"""Tables as people have them: columns, separators, encodings, kinds of features, missing values."""

from __future__ import annotations

import gzip
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store import DataError, FeatureColumn, FeatureSchema
from tests.training.data.tables import EDGES, NODES, parquet_nodes, read_with_flags, with_column, with_line, write_tables
from training.data.labelled import LabelledGraph
from training.data.tables.folder import TablesFolder
from training.data.tables.reading import Reading
from training.data.user_data import read_user_data, read_user_graph

MIXED = (
    "id,age,partner,genre,since,label\n"
    "a,0.1,yes,rock,2020-01-31,x\n"
    "b,n/a,no,jazz,2021-12-01T10:30:00,y\n"
    "c,7,,rock,1969-12-31,x\n"
    "d,-1e-3,TRUE,,,y\n"
)
CELLS: list[dict[str, Any]] = [
    {"age": 0.1, "partner": True, "genre": "rock", "since": "2020-01-31"},
    {"partner": False, "genre": "jazz", "since": "2021-12-01"},
    {"age": 7, "genre": "rock", "since": "1969-12-31"},
    {"age": -1e-3, "partner": True},
]
"""What a request would send for the rows of MIXED."""


def features(data: LabelledGraph) -> Any:
    return data.graph.features


@pytest.mark.parametrize("impute", ["mean", "zero", "flag"])
def test_features_are_bit_by_bit_those_of_a_request_with_the_same_cells(tmp_path: Path, impute: str) -> None:
    folder = write_tables(tmp_path, {"nodes.csv": MIXED, "edges.csv": "source,target\na,b\nc,d\n"})
    data = read_with_flags(folder, f"--dates days --impute {impute}")
    assert data.schema is not None
    requests = np.stack([data.schema.encode(cells) for cells in CELLS])
    assert features(data).tobytes() == requests.astype(np.float32).tobytes()
    assert data.feature_names == tuple(data.schema.position_names)
    assert FeatureSchema.from_json(data.schema.to_json()) == data.schema


def test_missing_values_are_filled_in_on_request(tmp_path: Path) -> None:
    folder = write_tables(tmp_path, {"nodes.csv": MIXED, "edges.csv": "source,target\na,b\n"})
    age = [0.1, None, 7.0, -1e-3]
    mean = float(np.mean([value for value in age if value is not None]))
    filled = {name: read_with_flags(folder, f"--dates days --impute {name}") for name in ("mean", "zero", "flag")}
    schemas = {name: {column.name: column for column in data.schema.columns} for name, data in filled.items() if data.schema}
    assert [schemas["mean"][name].fill for name in ("age", "partner", "genre")] == [mean, 1.0, "rock"]
    assert [schemas["zero"][name].fill for name in ("age", "partner", "genre")] == [0.0, 0.0, "rock"]
    assert filled["flag"].feature_names == (
        *("age", "age is missing", "partner", "partner is missing"),
        *("genre=jazz", "genre=rock", "genre is missing", "since", "since is missing"),
    )
    assert features(filled["flag"])[:, 1].tolist() == [0, 1, 0, 0]
    assert filled["zero"].notes[0] == "column age: 1 of 4 cells are missing, filled in with 0"
    assert filled["zero"].missing_cells == {"age": 1, "partner": 1, "genre": 1, "since": 1}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("nodes.csv", NODES.replace(",", ";")),
        ("nodes.csv", NODES.replace(",", " , ")),
        ("nodes.csv", NODES.replace(",", "|")),
        ("nodes.csv", NODES.replace("\n", "\r\n")),
        ("nodes.csv", NODES.replace("\n", "\n\n")),
        ("nodes.csv", NODES.replace("rock", '"rock"')),
        ("nodes.csv", NODES.encode("utf-8-sig")),
        ("nodes.tsv", NODES.replace(",", "\t")),
        ("nodes.csv.gz", gzip.compress(NODES.encode())),
        ("Nodes.CSV", NODES),
        ("nodes.parquet", None),
    ],
)
def test_every_form_of_a_table_gives_the_same_graph(tmp_path: Path, name: str, content: str | bytes | None) -> None:
    expected = read_with_flags(write_tables(tmp_path / "plain", {}))
    if content is None:
        columns: Any = zip(*(line.split(",") for line in NODES.splitlines()[1:]), strict=True)
        cells = dict(zip(("id", "age", "genre", "label"), map(list, columns), strict=True))
        content = parquet_nodes(**cells | {"age": [int(age) for age in cells["age"]]})
    data = read_with_flags(write_tables(tmp_path / "other", {name: content, "edges.csv": EDGES}))
    if name == "nodes.parquet":  # its columns are in another order
        assert data.schema == FeatureSchema(
            (FeatureColumn("age", "number"), FeatureColumn("genre", "category", ("jazz", "rock")))
        )
    assert data.sha256() == expected.sha256()


def test_flags_choose_the_encoding_the_separator_and_the_decimal_comma(tmp_path: Path) -> None:
    text = NODES.replace(",", "%").replace("%2", "%2,").replace("rock", "Größe")
    folder = write_tables(
        tmp_path, {"nodes.csv": text.encode("utf-16"), "edges.csv": EDGES.replace(",", "%").encode("utf-16")}
    )
    data = read_with_flags(folder, "--encoding utf-16 --delimiter % --decimal-comma")
    assert data.feature_names == ("age", "genre=Größe", "genre=jazz")
    np.testing.assert_array_equal(features(data)[:3, 0], np.float32([2.0, 2.1, 2.2]))


@pytest.mark.parametrize(
    ("header", "flags"),
    [
        ("node_id,age,genre,class", ""),
        ("Name,age,genre,Y", ""),
        ("key,age,genre,colour", "--id-column key --label-column colour"),
    ],
)
@pytest.mark.parametrize(
    ("ends", "edge_flags"),
    [
        ("src,dst", ""),
        ("From,To", ""),
        ("follower,followee", ""),
        ("b,a", "--source-column b --target-column a"),
        ("target,who", "--source-column who"),
    ],
)
def test_columns_are_detected_or_chosen(tmp_path: Path, header: str, flags: str, ends: str, edge_flags: str) -> None:
    nodes, edges = with_line(1, header), with_line(1, ends, EDGES)
    data = read_with_flags(write_tables(tmp_path, {"nodes.csv": nodes, "edges.csv": edges}), f"{flags} {edge_flags}")
    assert data.class_names == ("blue", "red")
    assert data.feature_names == ("age", "genre=jazz", "genre=rock")
    assert data.graph.num_edges == 3


def test_features_are_chosen_and_columns_are_left_out(tmp_path: Path) -> None:
    nodes = with_column("bio", [f"I am {node}" for node in range(12)])
    edges = "source,target,weight\nn0,n1,0.5\n"
    folder = write_tables(tmp_path, {"nodes.csv": nodes, "edges.csv": edges})
    assert read_with_flags(folder, "--ignore-columns bio,genre,weight").feature_names == ("age",)
    assert read_with_flags(folder, "--feature-columns genre --ignore-columns weight").feature_names == (
        "genre=jazz",
        "genre=rock",
    )
    ages = read_with_flags(folder, "--feature-columns age --category-columns age --ignore-columns weight")
    assert ages.feature_names == tuple(f"age={20 + node}" for node in range(12))
    np.testing.assert_array_equal(features(ages), np.eye(12))


def test_ids_are_text_or_whole_numbers(tmp_path: Path) -> None:
    def ids(*words: str) -> list[int | str]:
        nodes = "id,age,label\n" + "".join(f"{word},1,{row % 2}\n" for row, word in enumerate(words))
        edges = f"source,target\n{words[0]},{words[1]}\n"
        data = read_with_flags(write_tables(tmp_path, {"nodes.csv": nodes, "edges.csv": edges}))
        assert data.node_ids is not None
        return data.node_ids.names(range(len(words)))

    assert ids("1", "2", "-3", "40") == [1, 2, -3, 40]
    assert ids("1.0", "2.0", "3.0", "4") == [1, 2, 3, 4]
    assert ids("01", "2", "3", "4") == ["01", "2", "3", "4"]
    assert ids("1.0", "1.5", "3", "4") == ["1.0", "1.5", "3", "4"]
    assert ids("NA", "None", "nan", " x ") == ["NA", "None", "nan", "x"]
    assert ids(str(2**63), "1", "2", "3") == [str(2**63), "1", "2", "3"]


def test_what_was_assumed_is_noted(tmp_path: Path) -> None:
    edges = f"{EDGES}n1,n99\nn98,n99\n"
    nodes = with_line(3, "n1,21,rock,", with_line(4, "n2,22,jazz,purple"))
    data = read_with_flags(write_tables(tmp_path / "a", {"nodes.csv": nodes, "edges.csv": edges}), "--unknown-edges drop")
    assert data.graph.num_edges == 3
    assert data.notes == (
        "2 of 5 edges name ids that no node has: dropped",
        "1 of 12 nodes have no label: they are part of the graph, but not scored",
        "column label: class purple has one node only, too few to learn it and to score it",
    )
    values = "id,age,label\n" + "".join(f"n{node},{node},{node}.5\n" for node in range(12))
    data = read_with_flags(write_tables(tmp_path / "b", {"nodes.csv": values}))
    assert data.task == "regression"
    assert data.notes == ("column label has fractions: the task is regression (--task multiclass reads classes)",)


def test_parquet_columns_have_types(tmp_path: Path) -> None:
    nodes = parquet_nodes(
        partner=[True, False, None] * 4,
        since=[date(1970, 1, 11)] * 12,
        score=[1.5] * 12,
        id=[float(node) for node in range(12)],
    )
    folder = write_tables(tmp_path, {"nodes.parquet": nodes, "edges.csv": "source,target\n0,1\n"})
    data = read_with_flags(folder, "--dates days --impute flag")
    assert data.schema is not None
    assert [column.kind for column in data.schema.columns] == ["number", "boolean", "date", "number"]
    assert features(data)[:3].tolist() == [[0, 1, 0, 10, 1.5], [1, 0, 0, 10, 1.5], [2, 0, 1, 10, 1.5]]


def test_nodes_come_from_edges_if_there_is_no_other_table(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("u,v\nb,a\na,c\n")
    tables = TablesFolder(tmp_path)
    assert tables.ids.names(range(3)) == ["b", "a", "c"]
    assert tables.edge_index.tolist() == [[0, 1], [1, 2]]
    assert (tables.features.shape, tables.schema) == ((3, 0), None)


def test_a_graph_may_have_no_edges(tmp_path: Path) -> None:
    assert read_with_flags(write_tables(tmp_path, {"edges.csv": "source,target\n"})).graph.num_edges == 0


def test_newer_tables_are_read_with_the_schema_of_the_model(tmp_path: Path) -> None:
    first = read_with_flags(write_tables(tmp_path / "1", {}))
    assert first.schema is not None
    reordered = "genre,age,id\njazz,5,n0\njazz,6,n1\n"
    newer = read_user_graph(
        write_tables(tmp_path / "2", {"nodes.csv": reordered, "edges.csv": "u,v\nn0,n1\n"}), None, first.schema
    )
    assert newer.schema == first.schema
    assert np.asarray(newer.graph.features).tolist() == [[5, 1, 0], [6, 1, 0]]
    for nodes, expected in (
        (
            with_line(5, "n3,23,rok,red"),
            "nodes.csv line 5, column genre: 'rok', expected one of jazz, rock; did you mean 'rock'?",
        ),
        (
            with_line(5, "n3,,rock,red"),
            "nodes.csv line 5, column age: an empty cell is a missing value (1 of 12 cells of the column)",
        ),
        (
            with_column("depth", range(12)),
            "nodes.csv: column 'depth' is not one that the model reads: --ignore-columns depth",
        ),
        (
            NODES.replace("age", "Age"),
            "nodes.csv has no column 'age', which the model reads; it has id, Age, genre, label; did you",
        ),
    ):
        with pytest.raises(DataError) as caught:
            read_user_graph(write_tables(tmp_path / "3", {"nodes.csv": nodes}), None, first.schema)
        assert str(caught.value).startswith(expected)


def test_a_training_adds_new_categories_after_the_known_ones(tmp_path: Path) -> None:
    first = read_with_flags(write_tables(tmp_path / "1", {}))
    nodes = with_column("depth", range(12), NODES.replace("rock", "blues"))
    data = read_user_data(write_tables(tmp_path / "2", {"nodes.csv": nodes}), schema=first.schema)
    assert data.feature_names == ("age", "genre=jazz", "genre=rock", "genre=blues", "depth")
    with pytest.raises(DataError, match="line 2, column age: 'x' is not a number"):
        read_user_data(
            write_tables(tmp_path / "3", {"nodes.csv": with_column("age", ["x"] * 12, _without_age())}), schema=first.schema
        )


def _without_age() -> str:
    return "".join(
        ",".join(cell for place, cell in enumerate(line.split(",")) if place != 1) + "\n" for line in NODES.splitlines()
    )


def test_the_choices_are_kept_as_json_and_shown_as_flags() -> None:
    reading = Reading(id_column="the key", ignore_columns=("a", "b"), impute="mean", decimal_comma=True, delimiter=";")
    assert Reading.from_json(reading.to_json()) == reading
    assert str(reading) == "--id-column 'the key' --ignore-columns a,b --impute mean --delimiter ';' --decimal-comma"
    assert Reading().to_json() == {}
    with pytest.raises(DataError, match="the unknown choice 'colour': a newer version wrote it"):
        Reading.from_json({"colour": "red"})
