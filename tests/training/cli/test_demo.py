"""The demo command, wrong settings, and splits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from model_store import Store
from sgformer import ModelConfig
from training.__main__ import main
from training.data.datasets import digits
from training.data.labelled import TEST, TRAIN, VALIDATION
from training.data.splits import per_class_split, random_split
from training.fit.loop import TrainingConfig, train


def test_the_demo_learns_digits_and_its_new_node_is_exact(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "training", "--recipe", "digits", "--epochs", "40", "--json", "--activate"]
    result = subprocess.run([*command, "--store", str(tmp_path / "models")], capture_output=True, text=True, check=True)
    result_json = json.loads(result.stdout)
    assert result.stderr == ""
    assert result_json["nodes"] == 1796
    assert result_json["scores"]["test"]["accuracy"] > 0.95
    assert result_json["new_node"]["exactness"] == "exact"
    assert result_json["new_node"]["label"] == result_json["new_node"]["truth"]
    assert result_json["new_node"]["recomputed"] == digits.NEIGHBORS
    assert result_json["new_node"]["largest_difference"] < 1e-5
    with Store(tmp_path / "models").model("digits").open() as snapshot:
        assert snapshot.manifest.scores["test_accuracy"] == result_json["scores"]["test"]["accuracy"]
        assert snapshot.manifest.classes == tuple("0123456789")
        assert snapshot.manifest.training["regime"] == "full graph"
    assert b"<html" in (Store(tmp_path / "models").model("digits").report(1) or b"")
    assert not list((tmp_path / "training").iterdir()), "the checkpoint is removed after publishing"


def test_the_terminal_shows_the_score_and_the_drawing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--epochs", "2", "--hidden", "8", "--no-publish"]) == 0
    output = capsys.readouterr().out
    assert "test accuracy" in output
    assert "@@" in output
    assert "exact: " in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--alpha", "2"], "alpha must lie in [0, 1], got 2.0"),
        (["--hidden", "0"], "hidden must be a whole number"),
        (["--epochs", "0"], "epochs must be at least 1, got 0"),
        (["--seed", "-1"], "seed must be at least 0, got -1"),
        (["--lr", "-1"], "learning_rate must be a finite number of at least 0, got -1.0"),
        (["--batch-nodes", "1"], "batch_nodes must be at least 2, got 1"),
        (["--recipe", "soup"], "there is no recipe 'soup', expected a file.toml or one of"),
    ],
)
def test_a_wrong_setting_gives_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--no-publish"]) == 2
    assert capsys.readouterr().err.startswith(f"sgf-train: {message}")


def test_a_missing_data_set_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SGF_DATA_ROOT", str(tmp_path))
    assert main(["--dataset", "actor", "--no-publish"]) == 1
    assert "actor.npz does not exist: set SGF_DATA_ROOT" in capsys.readouterr().err
    assert main(["--dataset", "soup", "--no-publish"]) == 1
    assert "there is no data set 'soup', expected one of digits, cora" in capsys.readouterr().err


def test_the_same_seed_gives_the_same_weights() -> None:
    data, _ = digits.with_drawing()
    config = ModelConfig(in_features=64, out_features=10, hidden=8, attention_dropout=0.5, gnn_dropout=0.5)
    first, second = (train(config, data, TrainingConfig(epochs=3, seed=4)).model.weights() for _ in range(2))
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])


def test_a_random_split_has_every_labelled_node_in_one_part() -> None:
    labelled = np.arange(1000) % 10 != 0
    split = random_split(labelled, seed=0)
    assert [int((split == part).sum()) for part in (TRAIN, VALIDATION, TEST)] == [450, 225, 225]
    assert (split[~labelled] == -1).all()
    assert not np.array_equal(split, random_split(labelled, seed=1))


def test_a_random_split_is_independent_of_data_that_was_drawn_with_the_same_seed() -> None:
    labels = np.zeros(1000, dtype=np.int64)
    labels[np.random.default_rng(0).permutation(1000)[:200]] = 1  # as in minesweeper
    split = random_split(labels >= 0, seed=0)
    assert all(20 < (labels[split == part] == 1).sum() < 130 for part in (TRAIN, VALIDATION, TEST))


def test_a_split_per_class_has_20_training_nodes_of_every_class() -> None:
    labels = np.random.default_rng(0).integers(0, 5, 3000)
    split = per_class_split(labels, seed=0)
    assert np.bincount(labels[split == TRAIN]).tolist() == [20] * 5
    assert [int((split == part).sum()) for part in (VALIDATION, TEST)] == [500, 1000]
