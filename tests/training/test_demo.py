from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from sgformer import ModelConfig
from training import digits
from training.__main__ import main
from training.labelled import TEST, TRAIN, VALIDATION, random_split
from training.loop import TrainingConfig, train


def test_the_demo_learns_digits_and_its_new_node_is_exact() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "training", "--epochs", "40", "--json"], capture_output=True, text=True, check=True
    )
    told = json.loads(result.stdout)
    assert result.stderr == ""
    assert told["nodes"] == 1796
    assert told["test_accuracy"] > 0.95
    assert told["new_node"]["exactness"] == "exact"
    assert told["new_node"]["label"] == told["new_node"]["truth"]
    assert told["new_node"]["recomputed"] == digits.NEIGHBORS
    assert told["new_node"]["largest_difference"] < 1e-5


def test_a_person_sees_the_score_and_the_drawing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--epochs", "2", "--hidden", "8"]) == 0
    shown = capsys.readouterr().out
    assert "test accuracy" in shown
    assert "@@" in shown
    assert "exact: " in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--alpha", "1"], "alpha must lie in [0, 1), got 1.0"),
        (["--hidden", "0"], "hidden must be a whole number"),
        (["--epochs", "0"], "epochs must be at least 1, got 0"),
        (["--seed", "-1"], "seed must be at least 0, got -1"),
        (["--lr", "-1"], "learning_rate must be a finite number of at least 0, got -1.0"),
    ],
)
def test_a_bad_setting_is_one_line_and_exit_code_two(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"sgf-train: {message}")


def test_the_same_seed_gives_the_same_weights() -> None:
    data, _ = digits.load()
    config = ModelConfig(in_features=64, out_features=10, hidden=8, attention_dropout=0.5, gnn_dropout=0.5)
    first, second = (train(config, data, TrainingConfig(epochs=3, seed=4)).model.weights() for _ in range(2))
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])


def test_the_drawing_is_not_in_the_graph() -> None:
    data, drawing = digits.load()
    features = np.asarray(data.graph.features)
    assert not (features == drawing.pixels).all(axis=1).any()
    assert len(set(drawing.neighbors)) == digits.NEIGHBORS


def test_a_split_has_its_shares_and_covers_every_node() -> None:
    split = random_split(1000, seed=1)
    assert [int((split == part).sum()) for part in (TRAIN, VALIDATION, TEST)] == [500, 250, 250]
    assert (split == random_split(1000, seed=1)).all()
    assert (split != random_split(1000, seed=2)).any()
