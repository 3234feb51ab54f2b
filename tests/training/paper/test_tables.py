"""The tables of the paper, run on small data and written as a page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from sgformer import Graph, ModelConfig
from tests.sgformer.cases import IN_FEATURES, Case, Request, check_new_nodes
from training.__main__ import main
from training.data import datasets
from training.data.labelled import TEST, TRAIN, UNUSED, VALIDATION
from training.data.splits import per_class_split, random_split
from training.fit.loop import TrainingConfig
from training.fit.search_space import free_settings
from training.fit.settings import DEFAULTS, MODEL_SETTINGS, TRAINING_SETTINGS, configurations, read_recipe, recipe_names
from training.paper import attention_variants, contenders, pyg_sgformer, unseen_graphs
from training.paper.labels import share_label
from training.paper.page import page_of, write_page
from training.paper.pictures import pictures_of
from training.paper.published_figures import ALPHA, LABEL_SHARES, LABELS, MEDIUM
from training.paper.results import RESULTS, Entry, ResultsFile
from training.paper.splits import fresh_split


@pytest.fixture
def _quick(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGF_DATA_ROOT", str(root))
    for module in (contenders, pyg_sgformer, attention_variants):
        monkeypatch.setattr(
            module, "configurations", lambda data, settings: configurations(data, settings | {"epochs": 2, "hidden": 4})
        )


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_is_valid_and_has_a_note(name: str) -> None:
    recipe = read_recipe(name)
    assert recipe.dataset in datasets.DATASETS
    assert set(recipe.settings) <= MODEL_SETTINGS | TRAINING_SETTINGS
    assert len(recipe.note) > 20
    TrainingConfig(**{key: value for key, value in recipe.settings.items() if key in TRAINING_SETTINGS})


@pytest.mark.parametrize("name", recipe_names())
def test_the_model_of_every_recipe_answers_new_nodes_exactly(name: str) -> None:
    """A recipe may have more layers than the random models of the other tests of exactness."""
    model = {key: value for key, value in read_recipe(name).settings.items() if key in MODEL_SETTINGS}
    rng, nodes = np.random.default_rng(0), 60
    ring = np.stack([np.arange(nodes), (np.arange(nodes) + 1) % nodes])  # so that most nodes are far from the new ones
    edges = np.concatenate([ring, rng.integers(0, nodes, (2, 12))], axis=1)
    graph = Graph.build(rng.normal(size=(nodes, IN_FEATURES)), edges)
    config = ModelConfig(in_features=IN_FEATURES, out_features=3, **(model | {"hidden": 4}))
    check_new_nodes(Case(config, 0, graph, Request(rng.normal(size=(2, IN_FEATURES)), [[3, 30], [30]], [], joint=False)))


@pytest.mark.parametrize("name", ["ogbn-arxiv", "ogbn-proteins", "ogbn-products", "pokec", "ogbn-papers100M"])
def test_the_recipe_of_a_large_graph_trains_on_files_in_its_layout(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setenv("SGF_DATA_ROOT", str(root))
    assert main(["--recipe", name, "--epochs", "2", "--no-publish", "--no-checkpoint", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["epochs"] == 2


def test_every_row_of_the_medium_table_has_a_recipe() -> None:
    needed = {row.dataset for row in MEDIUM} | set(LABELS) | set(ALPHA)
    assert needed <= set(recipe_names())
    assert needed <= set(datasets.DATASETS)


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize(
    ("table", "name", "cells"),
    [
        ("medium", "chameleon", 5),
        ("labels", "chameleon", 10),
        ("ablation", "actor", 5),
        ("fresh", "chameleon", 4),
        ("attention", "chameleon", 4),
        ("depth", "chameleon", 3),
    ],
)
def test_a_table_is_run_and_written(
    tmp_path: Path, table: str, name: str, cells: int, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.json"
    assert main(["table", table, "--seeds", "2", "--only", name, "--results", str(results)]) == 0
    entries = json.loads(results.read_text())[table][name]
    assert len(entries) == cells
    for entry in entries.values():
        assert len(entry["scores"]) == 2
        assert all(0 <= score <= 100 for score in entry["scores"])
        assert (entry["command"], bool(entry["search"])) == (f"sgf-train table {table} --only {name}", True)
    output = capsys.readouterr()
    assert name in output.out
    assert f"[{cells}/{cells}] {name}" in output.err
    page = results.with_suffix(".md").read_text()
    assert f"| {name} |" in page
    assert {"medium": "44.9 | 43.6 | 44.9 |", "labels": "(31.6)", "ablation": "| 37.4 |"}.get(table, "") in page
    if table in ("attention", "depth"):
        return
    assert f"![{table}](results_{table}.svg)" in page
    picture = ElementTree.fromstring((tmp_path / f"results_{table}.svg").read_text())  # noqa: S314  # our own file
    assert name in " ".join(text.text or "" for text in picture.iter("{http://www.w3.org/2000/svg}text"))


@pytest.mark.usefixtures("_quick")
def test_a_stopped_table_continues_and_finished_runs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, runs = tmp_path / "results.json", []
    command = ["table", "medium", "--only", "chameleon", "--models", "SGFormer", "GCN", "--results", str(results)]

    def run(data: Any, settings: Any, seed: int) -> Any:
        runs.append((settings["alpha"], seed))
        if len(runs) == 3:
            raise KeyboardInterrupt
        return contenders_run(data, settings, seed)

    contenders_run = contenders.run_ours
    monkeypatch.setattr(contenders, "run_ours", run)
    assert main([*command, "--seeds", "2"]) == 130
    first = json.loads(results.read_text())["medium"]["chameleon"]["SGFormer"]["scores"]
    assert main([*command, "--seeds", "2"]) == 0
    entries = json.loads(results.read_text())["medium"]["chameleon"]
    assert (entries["SGFormer"]["scores"], len(entries["GCN"]["scores"])) == (first, 2)
    alpha = read_recipe("chameleon").settings["alpha"]
    assert runs == [(alpha, 0), (alpha, 1), (1.0, 0), (1.0, 0), (1.0, 1)]
    monkeypatch.setattr(
        contenders,
        "read_recipe",
        lambda name: replace(read_recipe(name), settings=read_recipe(name).settings | {"alpha": 0.1}),
    )
    assert main([*command[:5], "SGFormer", "--results", str(results), "--seeds", "1"]) == 0
    assert runs[-1] == (0.1, 0), "other settings are run again"


@pytest.mark.usefixtures("_quick")
def test_fresh_splits_differ_from_the_stored_ones_and_keep_their_sizes() -> None:
    load, stored = fresh_split("chameleon"), datasets.load("chameleon", 0)
    sizes = [int((stored.split == part).sum()) for part in (TRAIN, VALIDATION, TEST)]
    drawn = [load(run) for run in (0, 1, 0)]
    for data in drawn:
        assert [int((data.split == part).sum()) for part in (TRAIN, VALIDATION, TEST)] == sizes
    assert (drawn[0].split == drawn[2].split).all()
    assert (drawn[0].split != drawn[1].split).any()
    assert (drawn[0].split != random_split(stored.split != UNUSED, 0)).any()


def test_a_row_reaches_its_bar_if_it_also_reaches_the_gcn() -> None:
    row = MEDIUM[0]
    cells = {"scores": [row.bar + 1] * row.runs, "validation": [80.0], "seconds": 1.0}
    assert "| yes |" in page_of({"medium": {row.dataset: {"SGFormer": cells}}}, "results", set())
    better = {"SGFormer": cells, "GCN": cells | {"scores": [row.bar + 2]}}
    page = page_of({"medium": {row.dataset: better}}, "results", set())
    assert f"- {row.dataset}: the mean of {row.bar + 1:.2f} is 1.00 below the GCN on the same splits.\n" in page
    assert "| no |" in page
    page = page_of({"medium": {row.dataset: {"SGFormer": cells | {"scores": [row.bar + 1]}}}}, "results", set())
    assert f"- {row.dataset}: only 1 of {row.runs} runs are finished; their mean is {row.bar + 1:.2f}" in page
    assert "| no |" in page


def test_the_page_marks_cells_that_do_not_have_the_present_recipe() -> None:
    present = {"scores": [80.0], "validation": [], "seconds": 1.0, "search": "a search"}
    present |= {"settings": contenders.ours("chameleon").digest()}
    for table in ("medium", "fresh"):
        pages = [
            page_of({table: {"chameleon": {"SGFormer": present | other}}}, "r", set()) for other in ({}, {"settings": "x"})
        ]
        assert ["earlier recipes: chameleon" in page or "| of an earlier recipe: a search |" in page for page in pages] == [
            0,
            1,
        ]


@pytest.mark.parametrize(
    ("share", "recipe"),
    [(0.5, "actor-many-labels"), (0.1, "actor-many-labels"), (0.05, "actor-few-labels"), (0.01, "actor-few-labels")],
)
def test_a_share_of_labels_has_a_recipe_of_its_own_if_there_is_one(
    monkeypatch: pytest.MonkeyPatch, share: float, recipe: str
) -> None:
    monkeypatch.setattr(contenders, "recipe_names", lambda: ["actor", "actor-few-labels", "actor-many-labels"])
    assert contenders.recipe_for("actor", share) == recipe
    assert contenders.recipe_for("squirrel", share) == "squirrel"


def test_the_page_counts_the_shares_of_labels_that_reach_the_paper() -> None:
    """A mean reaches it if it is at most one standard deviation below."""
    paper, (first, second, third) = LABELS["chameleon"], LABEL_SHARES[:3]
    present = {"settings": contenders.ours(contenders.recipe_for("chameleon", first)).digest(), "search": "by validation"}
    cells = {
        share_label(first): {"scores": [paper[0] - 2, paper[0]], "seconds": 3.0, "command": "a command"} | present,
        share_label(second): {"scores": [paper[1] - 2.1, paper[1] - 0.1], "seconds": 5.0, "command": "a command"} | present,
        share_label(third): {"scores": [paper[2] + 1], "seconds": 1.0, "settings": "others"},
    }
    page = page_of({"labels": {"chameleon": cells}}, "results", set())
    assert "2 of 3 means are" in page
    recipe = contenders.recipe_for("chameleon", first)
    assert f"| chameleon | 50%, 40% | `{recipe}` | 2 | 2.0 | by validation | `a command` |" in page
    assert "| chameleon | 30% | an earlier one | 1 | 1.0 | not recorded |  |" in page


def test_two_processes_keep_each_others_cells(tmp_path: Path) -> None:
    first, second = (ResultsFile(tmp_path / "results.json") for _ in range(2))
    first.record("medium", "cora", "SGFormer", Entry([80.0]))
    second.record("medium", "cora", "GCN", Entry([79.0]))
    assert set(ResultsFile(tmp_path / "results.json").tables["medium"]["cora"]) == {"SGFormer", "GCN"}


def test_the_page_of_the_project_is_that_of_its_results() -> None:
    results = ResultsFile(RESULTS)
    pictures = pictures_of(results.tables)
    assert RESULTS.with_suffix(".md").read_text() == page_of(results.tables, RESULTS.stem, set(pictures))
    for name, picture in pictures.items():
        assert RESULTS.with_name(f"results_{name}.svg").read_text() == picture


@pytest.mark.usefixtures("_quick")
def test_the_defaults_are_compared_with_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(unseen_graphs, "TRIALS", 2)
    monkeypatch.setattr(unseen_graphs, "SEARCH", {"epochs": 2, "hidden": 4})
    monkeypatch.setattr(unseen_graphs, "STUDIES", tmp_path / "trials")
    results = tmp_path / "results.json"
    assert main(["table", "defaults", "--seeds", "3", "--only", "acm", "--results", str(results)]) == 0
    entries = json.loads(results.read_text())["defaults"]["acm"]
    assert [len(entry["scores"]) for entry in entries.values()] == [3, 3], "no progress of the search any more"
    assert (tmp_path / "trials" / "acm.db").is_file()
    difference = np.mean(entries["defaults"]["scores"]) - np.mean(entries["40-trial search"]["scores"])
    verdict = "yes" if difference >= -1 else "no"
    assert f"| {difference:+.1f} | {verdict} | 3 |" in results.with_suffix(".md").read_text()
    assert "acm, 40-trial search: " in capsys.readouterr().out


@pytest.mark.usefixtures("_quick")
def test_the_column_of_the_defaults_has_what_a_training_without_flags_has(monkeypatch: pytest.MonkeyPatch) -> None:
    data, settings = unseen_graphs.load_unseen("acm", 0), unseen_graphs.untuned_settings("acm")
    assert configurations(data, settings) == configurations(data, {})
    monkeypatch.setitem(DEFAULTS, "alpha", 0.25)
    assert unseen_graphs.untuned_settings("acm") != settings, "scores of other defaults would be reused"


def test_a_graph_whose_search_is_not_finished_is_shown_as_such(tmp_path: Path) -> None:
    results = ResultsFile(tmp_path / "results.json")
    results.record("defaults", "flickr", "defaults", Entry([90.0, 92.0], [91.0, 93.0], 1.0))
    write_page(results)
    assert "| flickr | 91.0 ± 1.0 | not finished |  |  | 2 |" in (tmp_path / "results.md").read_text()


@pytest.mark.usefixtures("_quick")
def test_a_search_that_is_stopped_leaves_its_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unseen_graphs, "SEARCH", {"epochs": 1, "hidden": 4})
    monkeypatch.setattr(unseen_graphs, "STUDIES", tmp_path / "trials")
    results, progress = tmp_path / "results.json", []

    def stop_at_two(self: ResultsFile, dataset: str, made: Any) -> None:
        if len(progress) == 2:
            raise KeyboardInterrupt
        record_progress(self, dataset, made)
        progress.append(made)

    record_progress = ResultsFile.record_progress
    monkeypatch.setattr(ResultsFile, "record_progress", stop_at_two)
    command = ["table", "defaults", "--seeds", "1", "--only", "acm", "--results", str(results)]
    assert main(command) == 130
    first, second = progress
    assert (first.trials, first.defaults, second.defaults) == (1, first.best, first.defaults)
    stored = json.loads(results.read_text())["defaults"]["acm"]["search so far"]
    assert set(stored["settings"]) == set(free_settings(unseen_graphs.SEARCH, "multiclass"))
    cell = f"{first.trials + 1} of 40 trials: validation {second.best:.1f}, defaults {first.defaults:.1f}"
    assert cell in results.with_suffix(".md").read_text()


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
