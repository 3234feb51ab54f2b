"""The end of a training: baselines, the report and the next commands, as text and as JSON."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from model_store import Store
from tests.training.samples import user_arrays, write_folder
from training.__main__ import main

QUICK = ["--epochs", "2", "--hidden", "4", "--no-checkpoint"]


def test_the_output_has_baselines_the_report_and_commands_that_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, store = write_folder(tmp_path / "my graph", "csv"), tmp_path / "the store"
    assert main(["--data", str(data), "--store", str(store), *QUICK]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("my graph: 20 nodes")
    assert lines[1] == "features: standard (auto: columns of numbers)"
    assert lines[2] == "defaults for a table: gnn_batch_norm true, attention_dropout 0.3, gnn_dropout 0.3"
    assert lines[3].startswith("test accuracy 0.")
    assert lines[3].endswith("2 of 2 by validation accuracy; it is the last: more --epochs may be better)") == (
        "(best epoch 2 of" in lines[3]
    )
    assert lines[4].startswith("  majority class: accuracy 0.")
    assert lines[5].startswith("  linear model: accuracy 0.")
    assert lines[6:9] == [
        "published my-graph 1, 20 nodes, not live yet",
        f"report: {store}/my-graph/1/report.html",
        "next:",
    ]
    activate, serve, ask = (shlex.split(line) for line in lines[9:])
    assert Path(lines[7].removeprefix("report: ")).is_file()
    subprocess.run([sys.executable, "-m", "model_store", *activate[1:]], check=True, capture_output=True)
    assert Store(store).model("my-graph").live() == 1
    assert serve == ["sgf-serve", "--store", str(store), "--model", "my-graph"]
    assert ask[:3] == ["curl", "localhost:8000/predict", "--json"]
    with Store(store).model("my-graph").open() as snapshot:
        assert snapshot.node_ids is not None
        assert len(snapshot.node_ids.rows(json.loads(ask[3])["nodes"])) == 1
        assert snapshot.manifest.training["features"] == "standard (auto: columns of numbers)"


def test_json_has_the_same_facts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGF_STORE", str(tmp_path / "models"))
    np.savez(tmp_path / "graph.npz", **user_arrays())
    assert main(["--data", str(tmp_path / "graph.npz"), "--activate", "--json", "--feature-transform", "row", *QUICK]) == 0
    result = json.loads(capsys.readouterr().out)
    assert list(result["baselines"]) == ["majority class", "linear model"]
    assert result["baselines"]["linear model"].keys() == result["scores"]["test"].keys()
    assert result["features"] == "row (as set)"
    assert Path(result["report"]).is_file()
    assert result["next"][0] == "sgf-serve --model graph", "a live version needs no activation, the default store no flag"
    assert len(result["next"]) == 2


@pytest.mark.parametrize(("given", "policy"), [({}, "passive"), ({"OMP_WAIT_POLICY": "active"}, "active")])
def test_threads_of_a_training_sleep_while_they_wait(given: dict[str, str], policy: str) -> None:
    """The variable is set before torch is loaded, which reads it once."""
    code = """
import os, sys
from training.__main__ import main
assert "torch" not in sys.modules
assert main(["--epochs", "0"]) == 2
print(os.environ["OMP_WAIT_POLICY"])
"""
    environ = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"} | given
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ)
    assert result.stdout.split() == [policy]
