"""The search for settings uses validation scores only, can be resumed, and writes a recipe."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.training.samples import labelled
from training.__main__ import main
from training.data.labelled import TEST
from training.fit import tuning
from training.fit.loop import Stopped
from training.fit.settings import Recipe, read_recipe, write_recipe

SMALL = ["--epochs", "2", "--hidden", "8"]


@pytest.fixture
def _few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "FINAL_RUNS", 2)


def test_tune_then_train(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "training", "--dataset", "digits", "--tune", "2", *SMALL]
    result = subprocess.run([*command, "--no-publish"], capture_output=True, text=True, check=True, cwd=tmp_path)
    *trials, finalists = result.stderr.splitlines()
    assert re.findall(r"trial \d of 2: validation 0\.\d+", result.stderr) == trials
    assert finalists == "the best 2 once more, 5 runs each"
    assert "test accuracy" in result.stdout


@pytest.mark.usefixtures("_few_runs")
def test_a_search_writes_a_recipe_and_can_be_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine.toml"
    command = ["tune", "--dataset", "digits", *SMALL, "--out", str(out), "--json"]
    assert main([*command, "--trials", "1"]) == 0
    assert main([*command, "--trials", "3"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["trials"] == 3
    recipe = read_recipe(str(out))
    assert recipe.dataset == "digits"
    assert recipe.settings == found["settings"]
    assert recipe.settings["hidden"] == 8
    assert "3 trials" in recipe.note
    assert main(["--recipe", str(out), "--no-publish", "--no-checkpoint", "--json"]) == 0


@pytest.mark.usefixtures("_few_runs")
def test_test_labels_do_not_influence_the_search() -> None:
    data = labelled("multiclass")
    shuffled = data.labels.copy()
    tested = data.nodes(TEST)
    shuffled[tested] = np.random.default_rng(0).permutation(shuffled[tested])
    fixed = {"epochs": 3, "hidden": 8}
    found = [
        tuning.tune([type(data)(data.name, data.graph, labels, data.split)], 4, fixed=fixed)
        for labels in (data.labels, shuffled)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 130)])
def test_ctrl_c_ends_the_search_with_the_best_so_far_and_sigterm_ends_the_command(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    out = tmp_path / "mine.toml"
    command = [
        sys.executable,
        "-m",
        "training",
        "tune",
        "--dataset",
        "digits",
        *SMALL,
        "--out",
        str(out),
        "--trials",
        "9999",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stderr is not None
        try:
            assert "trial 1 of 9999" in process.stderr.readline()
            process.send_signal(number)
            assert process.wait(timeout=120) == code
        finally:
            process.kill()
    assert out.exists() == (code == 0)
    assert code or read_recipe(str(out)).settings["epochs"] == 2


def test_ctrl_c_in_a_search_before_a_training_ends_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "training", "--dataset", "digits", "--tune", "1", "--activate", *SMALL]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        try:
            assert process.stderr is not None
            while "once more" not in process.stderr.readline():
                pass
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=120) == 130
        finally:
            process.kill()
    assert not (tmp_path / "var").exists()


@pytest.mark.usefixtures("_few_runs")
@pytest.mark.parametrize(
    ("at", "ends_in"),
    [
        ({1}, "stopped"),  # in the first trial: no trial is complete
        ({12}, "chosen"),  # after the first trial, which checks before it starts and after each of its ten epochs
        ({12, 15}, "stopped"),  # a second request, while the finalists run
        ({33}, "stopped"),  # the first request, while the finalists run
    ],
)
def test_the_first_request_to_stop_chooses_the_best_so_far_and_the_second_stops(at: set[int], ends_in: str) -> None:
    """A search of two trials."""
    checks, requests = 0, 0

    def stop_requests() -> int:
        nonlocal checks, requests
        checks += 1
        requests += checks in at
        return requests

    try:
        found = tuning.tune([labelled("multiclass")], 2, fixed={"epochs": 5, "hidden": 8}, stop_requests=stop_requests)
    except Stopped:
        assert ends_in == "stopped"
    else:
        assert (ends_in, found.trials) == ("chosen", 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dataset = [", "is not TOML"),
        ('note = "x"', "has no dataset"),
        ('dataset = "cora"\nnote = "x"\n[model]\nhiden = 3', "unknown settings: hiden"),
    ],
)
def test_a_bad_recipe_is_refused(tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    assert main(["--recipe", str(path), "--no-publish"]) == 2
    assert message in capsys.readouterr().err


def test_a_recipe_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "one.toml"
    recipe = Recipe("one", "cora", {"hidden": 8, "value_map": False, "learning_rate": 1e-5, "gnn_input": "features"}, "why")
    write_recipe(path, recipe)
    read = read_recipe(str(path))
    assert (read.dataset, read.settings, read.note.strip()) == ("cora", recipe.settings, "why")
