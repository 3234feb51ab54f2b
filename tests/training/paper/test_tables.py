"""The tables of the paper, run on small data and written as a page."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from training.__main__ import main
from training.data import datasets
from training.data.labelled import TEST, TRAIN, UNUSED, VALIDATION
from training.data.splits import per_class_split, random_split
from training.fit.loop import TrainingConfig
from training.fit.settings import MODEL_SETTINGS, TRAINING_SETTINGS, configurations, read_recipe, recipe_names
from training.paper import tables
from training.paper.published_figures import ALPHA, LABELS, MEDIUM


@pytest.fixture
def _quick(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGF_DATA_ROOT", str(root))
    monkeypatch.setattr(
        tables, "configurations", lambda data, settings: configurations(data, settings | {"epochs": 2, "hidden": 4})
    )


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_is_valid_and_has_a_note(name: str) -> None:
    recipe = read_recipe(name)
    assert recipe.dataset in datasets.DATASETS
    assert set(recipe.settings) <= MODEL_SETTINGS | TRAINING_SETTINGS
    assert len(recipe.note) > 20
    TrainingConfig(**{key: value for key, value in recipe.settings.items() if key in TRAINING_SETTINGS})


def test_every_row_of_the_medium_table_has_a_recipe() -> None:
    needed = {row.dataset for row in MEDIUM} | set(LABELS) | set(ALPHA)
    assert needed <= set(recipe_names())
    assert needed <= set(datasets.DATASETS)


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize(("table", "name"), [("medium", "chameleon"), ("labels", "chameleon"), ("ablation", "actor")])
def test_a_table_is_run_and_written(tmp_path: Path, table: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results.json"
    assert main(["table", table, "--seeds", "2", "--only", name, "--results", str(results)]) == 0
    entries = json.loads(results.read_text())[table][name]
    for entry in entries.values():
        assert len(entry["scores"]) == 2
        assert all(0 <= score <= 100 for score in entry["scores"])
    assert name in capsys.readouterr().out
    page = results.with_suffix(".md").read_text()
    assert f"| {name} |" in page
    assert {"medium": "44.9 | 43.6 |", "labels": "(31.6)", "ablation": "| 37.4 |"}[table] in page


def test_the_random_split_equals_that_of_the_authors_code() -> None:
    """The authors' code shuffles class by class with torch's global generator, then shuffles the rest once."""
    labels = np.random.default_rng(0).integers(0, 3, size=200)
    torch.manual_seed(123)
    train, rest = [], []
    for label in range(3):
        nodes = torch.from_numpy(np.flatnonzero(labels == label))
        shuffled = nodes[torch.randperm(len(nodes))].tolist()
        train += shuffled[:20]
        rest += shuffled[20:]
    order = torch.randperm(len(rest)).tolist()
    split = per_class_split(labels, 123, validation=50, test=70)
    assert sorted(np.flatnonzero(split == TRAIN)) == sorted(train)
    assert sorted(np.flatnonzero(split == VALIDATION)) == sorted(rest[place] for place in order[:50])
    assert sorted(np.flatnonzero(split == TEST)) == sorted(rest[place] for place in order[50:120])


def test_few_labels_leave_the_other_nodes_unused() -> None:
    split = random_split(np.ones(1000, dtype=bool), seed=0, shares=(0.01, 0.25, 0.25))
    assert [int((split == part).sum()) for part in (TRAIN, VALIDATION, TEST, UNUSED)] == [10, 250, 250, 490]
