"""The paper's tables: run on small data, written as a page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.training.test_data import root as small_data
from training import datasets, tables
from training.__main__ import main
from training.loop import TrainingConfig
from training.settings import MODEL_SETTINGS, TRAINING_SETTINGS, configurations, read_recipe, recipe_names

root = small_data


@pytest.fixture
def _quick(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGF_DATA_ROOT", str(root))
    monkeypatch.setattr(
        tables, "configurations", lambda data, settings: configurations(data, settings | {"epochs": 2, "hidden": 4})
    )


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_can_be_read_and_says_how_it_was_chosen(name: str) -> None:
    recipe = read_recipe(name)
    assert recipe.dataset in datasets.DATASETS
    assert set(recipe.settings) <= MODEL_SETTINGS | TRAINING_SETTINGS
    assert len(recipe.note) > 20
    TrainingConfig(**{key: value for key, value in recipe.settings.items() if key in TRAINING_SETTINGS})


def test_every_row_of_the_medium_table_has_a_recipe() -> None:
    assert {row.recipe for row in tables.MEDIUM} <= set(recipe_names())
    assert {row.dataset for row in tables.MEDIUM} <= set(datasets.DATASETS)


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("table", ["medium", "labels", "ablation"])
def test_a_table_is_run_and_written(tmp_path: Path, table: str, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results.json"
    assert main(["table", table, "--seeds", "2", "--only", "chameleon", "--results", str(results)]) == 0
    entries = json.loads(results.read_text())[table]["chameleon"]
    for entry in entries.values():
        assert len(entry["scores"]) == 2
        assert all(0 <= score <= 100 for score in entry["scores"])
    assert "chameleon" in capsys.readouterr().out
    page = results.with_suffix(".md").read_text()
    assert "| chameleon |" in page
    if table == "medium":
        assert "44.9 | 43.6 |" in page
