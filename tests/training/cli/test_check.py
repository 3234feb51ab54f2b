"""`sgf-train check`: its output, its JSON, its exit codes, and the facts at the start of a training."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.samples import user_arrays, write_folder, write_shop
from training.__main__ import main
from training.data.facts import findings

EXPECTED = """\
data        pets
nodes       20; 16 without edges; 17 connected components, the largest of 4
            nodes
edges       3 undirected; largest degree 2; from 3 entries: each edge in one
            direction
features    2: 1 number, 1 whole number; zeros only for 1 node; standardised
            (auto: columns of numbers)
labels      20 nodes (100%); 2 classes
split       5 train, 5 validation, 5 test; given with the data
homophily   0% of the edges join two nodes of one class; adjusted for chance
            -1.00
task        multiclass; the best epoch is chosen by validation accuracy

  feature  type          from  to
  height   number           0  0.95
  width    whole number     0  19    an index?

  class  nodes  train  validation  test
  blue      10      0           5     0
  red       10      5           0     5

warning: 16 of 20 nodes (80%) have no edges. What to do: check that the ids in
  the edge list are those of the nodes; without edges, only features and
  attention count.
warning: the rows of the table are numbered in feature width. What to do: remove
  the column: it is not a property of the nodes.
warning: no training node has class blue: the model cannot learn it. What to do:
  label more nodes, or set the split so that every class has training nodes.
warning: 5 test nodes. What to do: --activate if_better compares versions on at
  least 20: label more nodes, or change --split.

training would start
"""
SPLIT = ["train", "val", "test", ""] * 5


def folder(tmp_path: Path, **changes: Any) -> str:
    return str(write_folder(tmp_path / "pets", "csv", nodes={"split": SPLIT, **changes}))


def test_the_output_for_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder(tmp_path)
    assert main(["check", path]) == 0
    output = capsys.readouterr().out
    assert output == EXPECTED
    assert max(map(len, output.splitlines())) <= 80
    assert main(["check", "--data", path]) == 0
    assert capsys.readouterr().out == EXPECTED


def test_the_json_has_the_facts_and_the_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", folder(tmp_path), "--json", "--feature-transform", "standard"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result) == {"facts", "notes", "warnings", "error"}
    assert (result["facts"]["nodes"], result["facts"]["scaling"], result["error"]) == (20, "standard", None)
    assert result["facts"]["given"] == {"entries": 3, "one_way": 3, "repeated": 0, "self_loops": 0}
    assert result["facts"]["labels"]["classes"][0] == {
        "name": "blue",
        "nodes": 10,
        "parts": {"train": 0, "validation": 5, "test": 0},
    }
    assert [warning["code"] for warning in result["warnings"]] == [
        "isolated_nodes",
        "index_column",
        "untrained_class",
        "few_test_nodes",
    ]
    assert set(result["warnings"][0]) == {"code", "text", "advice"}


def test_data_that_training_would_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, reason = folder(tmp_path, label=["red"] * 20), "has the single class 'red', expected at least two"
    assert main(["check", path]) == 1
    output = capsys.readouterr().out
    assert output.startswith("data        pets\nnodes       20; ")
    assert output.splitlines()[-1].startswith("training would be refused: ")
    assert output.endswith(f"{reason}\n")
    assert main(["check", path, "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["error"].endswith(reason)
    assert result["facts"]["labels"] is None
    assert main(["check", str(tmp_path / "nothing.npz")]) == 1
    output = capsys.readouterr().out
    assert output.startswith(f"training would be refused: there is no file or folder {tmp_path / 'nothing.npz'}")


def test_missing_cells_are_a_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heights = ["", *(f"{number / 20}" for number in range(1, 20))]
    path = folder(tmp_path, height=heights)
    expected = """
  feature  type          from  to    missing
  height   number        0.05  0.95  5%
  width    whole number  0     19             an index?
"""
    for flags, code in ((["--impute", "flag"], 0), ([], 1)):  # a training is refused without a flag, the cells are counted
        assert main(["check", path, *flags]) == code
        assert expected in capsys.readouterr().out
        assert main(["check", path, *flags, "--json"]) == code
        columns = json.loads(capsys.readouterr().out)["facts"]["features"]["columns"]
        assert {column["name"]: column["missing"] for column in columns} == {"height": 0.05, "width": 0}


def test_a_data_set_is_checked_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--dataset", "digits"]) == 0
    assert "edges       9,922 undirected; largest degree 26; from 21,640 entries: each edge" in capsys.readouterr().out
    assert main(["check", "graph.npz", "--dataset", "digits"]) == 2
    assert capsys.readouterr().err == "sgf-train: check reads one graph, got graph.npz and digits\n"


def test_only_a_terminal_gets_colours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder(tmp_path)
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)
    assert main(["check", path]) == 0
    assert "\x1b[33mwarning: 16 of 20 nodes" in capsys.readouterr().out


def test_a_training_begins_with_the_facts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edges = np.array([[0, 1, 2, 2], [1, 0, 3, 3]])
    np.savez(tmp_path / "graph.npz", **user_arrays(edge_index=edges))
    command = ["--data", str(tmp_path / "graph.npz"), "--epochs", "1", "--hidden", "4", "--no-publish", "--no-checkpoint"]
    assert main(command) == 0
    printed = capsys.readouterr().err
    assert "edges       2 undirected; largest degree 1; from 4 entries: 1 edges in one" in printed
    assert "warning: 1 of 2 edges are given in one direction only; all edges are read as" in printed
    assert "class " not in printed
    assert main([*command, "--quiet"]) == 0
    assert "edges" not in capsys.readouterr().err


def test_the_page_shows_a_real_output_and_explains_every_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "check.md").read_text()
    assert main(["check", str(write_shop(tmp_path / "shop"))]) == 0
    assert f"```text\n{capsys.readouterr().out}```" in page
    codes = set(re.findall(r'^ *(?:yield )?Finding\(\s*"(\w+)"', inspect.getsource(findings), re.MULTILINE))
    codes |= {code for code, _, _ in findings.SUSPICIONS.values()}
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == codes
