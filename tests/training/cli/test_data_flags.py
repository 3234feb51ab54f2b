"""The flags about tables: parsed, stored in the manifest, and used again when newer tables are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from model_store import FeatureSchema, Store
from tests.training.data.tables import EDGES, NODES, with_line, write_tables
from training.__main__ import main, train_parser
from training.cli.options import TrainOptions
from training.data.tables.reading import Reading


def parse(*words: str) -> TrainOptions:
    return TrainOptions.of(train_parser().parse_args(words))


def test_every_flag_is_a_field_of_the_reading() -> None:
    words = "--id-column a --label-column b --source-column c --target-column d --feature-columns e,f --ignore-columns g "
    words += "--category-columns h --impute flag --dates days --unknown-edges drop --delimiter tab --encoding latin-1"
    expected = Reading("a", "b", "c", "d", ("e", "f"), ("g",), ("h",), "flag", "days", "drop", "\t", "iso8859-1", True)
    assert parse(*words.split(), "--decimal-comma").reading == expected
    assert parse().reading == Reading()
    assert parse("--ignore-columns", 'a, "b,c"').reading.ignore_columns == ("a", "b,c")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--delimiter", "::"], "'::', expected one character, tab or space"),
        (["--encoding", "klingon"], "'klingon' is not an encoding; for example utf-8, utf-16, cp1252, latin-1"),
        (["--ignore-columns", "a,,b"], "'a,,b', expected names of columns with commas between them"),
    ],
)
def test_a_wrong_flag_is_refused(words: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(*words)
    assert reason in capsys.readouterr().err


def test_flags_about_tables_are_refused_for_a_data_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--dataset", "digits", "--impute", "mean"]) == 2
    assert "--impute mean: for your own tables (--data), not for a data set" in capsys.readouterr().err


def test_the_old_name_of_the_feature_transform_warns(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        parse("--features", "row").settings == parse("--feature-transform", "row").settings == {"feature_transform": "row"}
    )
    assert capsys.readouterr().err == "sgf-train: --features is deprecated, use --feature-transform\n"
    assert "--features" not in train_parser().format_help()


def test_newer_tables_are_read_as_those_of_the_live_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = with_line(5, "n3,,rock,red").replace("id,", "key,")
    folder = write_tables(tmp_path / "pets", {"nodes.csv": nodes})
    where = ["--data", str(folder), "--store", str(tmp_path / "models"), "--quiet"]
    training = ["--epochs", "2", "--hidden", "4", "--no-checkpoint", "--activate"]
    assert main([*where, *training, "--id-column", "key", "--impute", "flag"]) == 0
    first = manifest(tmp_path)
    assert first.reading == {"id_column": "key", "impute": "flag"}
    assert isinstance(first.features, FeatureSchema)
    assert first.features.position_names == ["age", "age is missing", "genre=jazz", "genre=rock"]

    assert main([*where, *training]) == 0
    assert "tables are read as for the earlier version: --id-column key --impute flag" in capsys.readouterr().err
    assert (manifest(tmp_path).reading, manifest(tmp_path).features) == (first.reading, first.features)

    write_tables(folder, {"nodes.csv": nodes + "n12,,jazz,\n", "edges.csv": EDGES + "n0,n12\n"})
    assert main(["refresh", *where, "--activate"]) == 0
    assert "column age: 2 of 13 cells are missing, filled in with 25.7273" in capsys.readouterr().err
    assert (manifest(tmp_path).reading, manifest(tmp_path).features) == (first.reading, first.features)

    write_tables(folder, {"nodes.csv": nodes + "n12,1,blues,\n"})
    assert main(["refresh", *where]) == 1
    message = "nodes.csv line 14, column genre: 'blues', expected one of jazz, rock; a new category needs a new training"
    assert f"sgf-train: {message}" in capsys.readouterr().err

    write_tables(folder, {"nodes.csv": NODES})  # flags replace the stored choices
    assert main([*where, *training, "--ignore-columns", "genre"]) == 0
    assert manifest(tmp_path).reading == {"ignore_columns": ["genre"]}


def manifest(folder: Path) -> Any:
    versions = Store(folder / "models").model("pets")
    live = versions.live()
    assert live is not None
    return versions.manifest(live)
