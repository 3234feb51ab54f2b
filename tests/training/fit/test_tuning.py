"""The search for settings uses validation scores only, can be resumed, and writes a recipe."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.samples import labelled
from training.__main__ import main
from training.data.labelled import TEST
from training.fit import tuning
from training.fit.loop import Stopped
from training.fit.search_space import SPACE
from training.fit.settings import Recipe, read_recipe, write_recipe
from training.fit.tuning import ABORT, SearchResult

SMALL = ["--epochs", "2", "--hidden", "8"]


@pytest.fixture
def _few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "FINAL_RUNS", 2)


def searched(folds: Any, trials: int, fixed: dict[str, Any], stop: Any = lambda: 0) -> SearchResult:
    search = tuning.Search(folds, fixed, stop=stop)
    search.run_trials(trials)
    return search.choose()


def test_tune_then_train(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "training", "--dataset", "digits", "--tune", "2", *SMALL]
    result = subprocess.run([*command, "--no-publish"], capture_output=True, text=True, check=True, cwd=tmp_path)
    *trials, finalists = result.stderr.partition("\n\n")[2].partition("\n\n")[2].splitlines()  # after the facts
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
        searched([type(data)(data.name, data.graph, labels, data.split)], 4, fixed) for labels in (data.labels, shuffled)
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
            assert any("once more" in line for line in process.stderr), "the command ended before"
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=120) == 130
        finally:
            process.kill()
    assert not (tmp_path / "var").exists()


@pytest.mark.usefixtures("_few_runs")
@pytest.mark.parametrize(
    ("levels", "trials", "runs"),
    [
        ({1: 1}, 0, 0),  # in the first trial: no trial is complete, and the result is the defaults
        ({14: 1}, 1, 2),  # after the first trial, which checks before it starts and after each of its ten epochs
        ({14: 1, 17: 2}, 1, 0),  # a second request, in the first run of the finalists
        ({14: 1, 22: 2}, 1, 1),  # and in their second
        ({1: ABORT}, None, None),
        ({14: 1, 17: ABORT}, None, None),
    ],
)
def test_a_request_to_stop_chooses_by_what_is_known(levels: dict[int, int], trials: int | None, runs: int | None) -> None:
    """A search of two trials."""
    checks, level = 0, 0

    def stop() -> int:
        nonlocal checks, level
        checks += 1
        level = levels.get(checks, level)
        return level

    try:
        result = searched([labelled("multiclass")], 2, {"epochs": 5, "hidden": 8}, stop)
    except Stopped:
        assert trials is None
    else:
        assert (result.trials, result.runs) == (trials, runs)
        assert (result.score is None) == (trials == 0)
        assert result.settings["hidden"] == 8
        assert {"gnn_batch_norm", "schedule", "gnn_layer_residual"} <= set(result.settings)


@pytest.mark.parametrize("known", [False, True], ids=["in the first trial", "with a stored trial"])
def test_a_search_with_a_time_limit_ends_in_a_recipe(tmp_path: Path, known: bool) -> None:
    out = tmp_path / "mine.toml"
    command = ["tune", "--dataset", "digits", "--hidden", "8", "--out", str(out), "--quiet"]
    if known:
        assert main([*command, "--epochs", "1", "--trials", "1"]) == 0
    assert main([*command, "--epochs", "99999", "--patience", "99999", "--trials", "9999", "--at-most", "1"]) == 0
    recipe = read_recipe(str(out))
    assert ("1 trials of `sgf-train tune`" in recipe.note, "before a trial was complete" in recipe.note) == (
        known,
        not known,
    )
    assert recipe.settings["epochs"] == 99999


@pytest.mark.usefixtures("_few_runs")
def test_several_processes_share_a_search(tmp_path: Path) -> None:
    out = tmp_path / "mine.toml"
    command = [sys.executable, "-m", "training", "tune", "--dataset", "digits", *SMALL, "--out", str(out)]
    result = subprocess.run([*command, "--trials", "6", "--jobs", "2"], capture_output=True, text=True, check=True)
    numbers = [int(number) for number in re.findall(r"trial (\d+) of 6", result.stderr)]
    assert sorted(numbers) == sorted(set(numbers)), "no trial is run twice"
    assert "after 6 trials" in result.stdout or "after 7 trials" in result.stdout
    assert read_recipe(str(out)).settings["epochs"] == 2


def test_a_search_can_begin_with_a_recipe(tmp_path: Path) -> None:
    command = ["tune", "--dataset", "digits", *SMALL, "--out", str(tmp_path / "mine.toml"), "--quiet", "--trials", "1"]
    assert main([*command, "--begin", "chameleon"]) == 0
    begun, recipe = read_recipe(str(tmp_path / "mine.toml")).settings, read_recipe("chameleon").settings
    same = {name for name in recipe if begun.get(name) == recipe[name]}
    assert set(recipe) - same == {"hidden", "epochs", "patience"}, (
        "those that are fixed, and patience, which is not searched"
    )


def test_after_the_first_trials_the_sampler_has_learnt() -> None:
    """A score that depends on one setting: after the known settings and the random ones, most trials have its best value."""
    search = tuning.Search([labelled("multiclass")], {"epochs": 1, "hidden": 8})
    search._trial_score = lambda trial: float(  # type: ignore[method-assign]
        {name: trial.suggest_categorical(name, choices) for name, choices in SPACE.items()}["layers"] == 4
    )
    search.run_trials(30)
    later = [trial.params["layers"] for trial in search._study.trials[12:]]
    assert later.count(4) > len(later) / 2


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
