"""The paper's tables, side by side: ours, the paper's, and what the authors' code gives on the same splits.

medium      the seven medium-sized graphs, with the recipes
labels      fewer labels: 50 % to 1 % of the nodes train
ablation    attention on and off, and alpha
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from training import datasets
from training.loop import train
from training.settings import configurations, read_recipe
from training.splits import random_split

LABEL_SHARES = (0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.01)
RESULTS = Path(__file__).parent.parent / "docs" / "results.json"


@dataclass(frozen=True)
class Row:
    dataset: str
    recipe: str
    paper: float | None
    authors: float | None
    """Measured with the authors' commands on the same kind of split; None where that was not run."""


MEDIUM = (
    Row("cora", "cora", 84.5, None),
    Row("citeseer", "citeseer", 72.6, None),
    Row("pubmed", "pubmed", 80.3, None),
    Row("cora-random", "cora", None, 82.5),
    Row("citeseer-random", "citeseer", None, 67.4),
    Row("pubmed-random", "pubmed", None, 79.1),
    Row("actor", "actor", 37.9, None),
    Row("squirrel", "squirrel", 41.8, None),
    Row("chameleon", "chameleon", 44.9, 43.6),
    Row("deezer", "deezer", 67.1, None),
)


@dataclass(frozen=True)
class Outcome:
    dataset: str
    label: str
    scores: list[float]
    """Test scores in per cent, one per seed."""
    validation: list[float]
    seconds: float

    @property
    def mean(self) -> float:
        return float(np.mean(self.scores))

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {np.std(self.scores):.1f}"


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        "sgf-train table", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("table", choices=list(TABLES))
    found.add_argument("--seeds", type=int, choices=range(1, 101), default=5, metavar="N", help="runs per data set")
    names = sorted({row.dataset for row in MEDIUM})
    found.add_argument("--only", nargs="+", choices=names, metavar="NAME", help="these data sets only")
    found.add_argument("--results", type=Path, default=RESULTS, help="JSON with all tables; results.md is written beside it")
    found.set_defaults(command=lambda options: TABLES[options.table](options))
    return found


def medium(options: argparse.Namespace) -> int:
    for row in MEDIUM:
        if options.only and row.dataset not in options.only:
            continue
        outcome = run(row.dataset, row.recipe, options.seeds, "recipe")
        goals = f"paper {row.paper or '-'}, authors' code {row.authors or '-'}"
        sys.stdout.write(f"{row.dataset}: {outcome}  ({goals}, {outcome.seconds:.0f} s)\n")
        sys.stdout.flush()
        _record(options.results, "medium", outcome)
    return 0


def labels(options: argparse.Namespace) -> int:
    """A share of all nodes trains, a quarter validates, and the rest tests, at random."""
    for name in options.only or ("cora", "pubmed", "chameleon"):
        for share in LABEL_SHARES:
            outcome = run(name, name, options.seeds, f"{share:.0%}", share)
            sys.stdout.write(f"{name}, {share:.0%} of the nodes train: {outcome}\n")
            sys.stdout.flush()
            _record(options.results, "labels", outcome)
    return 0


def ablation(options: argparse.Namespace) -> int:
    variants: dict[str, dict[str, Any]] = {
        "as in the recipe": {},
        "alpha 0.5": {"alpha": 0.5},
        "alpha 0.8": {"alpha": 0.8},
        "attention only": {"alpha": 0.0},
        "graph only": {"alpha": 0.999},
    }
    for name in options.only or ("cora", "chameleon"):
        for label, changes in variants.items():
            outcome = run(name, name, options.seeds, label, **changes)
            sys.stdout.write(f"{name}, {label}: {outcome}\n")
            sys.stdout.flush()
            _record(options.results, "ablation", outcome)
    return 0


TABLES: dict[str, Callable[[argparse.Namespace], int]] = {"medium": medium, "labels": labels, "ablation": ablation}


def run(dataset: str, recipe: str, seeds: int, label: str, label_share: float | None = None, **changes: Any) -> Outcome:
    """One run per seed; stored splits go with the seeds, or `label_share` of the nodes trains.

    The test score is of the best epoch by validation.
    """
    settings = read_recipe(recipe).settings | changes
    tested, validated = [], []
    start = time.perf_counter()
    for seed in range(seeds):
        data = datasets.load(dataset, split=seed, seed=seed)
        if label_share is not None:
            data = replace(data, split=random_split(data.labels >= 0, seed, (label_share, 0.25)))
        config, training = configurations(data, settings | {"seed": seed})
        trained = train(config, data, training)
        tested.append(100 * trained.scores["test"][data.metric])
        validated.append(100 * trained.best.validation)
    return Outcome(dataset, label, tested, validated, time.perf_counter() - start)


def _record(path: Path, table: str, outcome: Outcome) -> None:
    """Every outcome is kept as soon as it is there; the page is written anew from all of them."""
    pages = json.loads(path.read_text()) if path.exists() else {}
    entry = {"scores": outcome.scores, "validation": outcome.validation, "seconds": outcome.seconds}
    entry["date"] = datetime.now(UTC).date().isoformat()
    pages.setdefault(table, {}).setdefault(outcome.dataset, {})[outcome.label] = entry
    path.write_text(json.dumps(pages, indent=1) + "\n")
    path.with_suffix(".md").write_text(_page(pages))


HEAD = """# Results

Written by `sgf-train table`. Means and standard deviations of test scores over seeds, in per cent; the best epoch is
chosen by validation, and no test label touches any choice. Recipes: `training/recipes/`.
"""
SPLITS = """
The first three use the public split, `-random` 20 random nodes per class (the authors' commands), the others their stored
splits. Settings are shared by all splits of a data set, as in the paper: a test node of one split may have been a validation
node of another.
"""


def _page(pages: dict[str, Any]) -> str:
    parts = [HEAD]
    if medium := pages.get("medium"):
        rows = [_medium_row(row, medium[row.dataset]["recipe"]) for row in MEDIUM if row.dataset in medium]
        header = ["data set", "ours", "seeds", "validation", "the paper", "authors' code", "reached", "seconds"]
        parts += [_markdown("The paper's medium-sized graphs", header, rows), SPLITS]
    if fewer := pages.get("labels"):
        shares = [f"{share:.0%}" for share in LABEL_SHARES]
        rows = [
            [name, *(_spread(entries[s]["scores"]) if s in entries else "" for s in shares)]
            for name, entries in fewer.items()
        ]
        parts.append(_markdown("Fewer labels: share of the nodes that train", ["data set", *shares], rows))
    if ablation := pages.get("ablation"):
        entries = [(name, label, entry) for name, labels in ablation.items() for label, entry in labels.items()]
        rows = [[name, label, _spread(entry["scores"])] for name, label, entry in entries]
        parts.append(_markdown("Ablation", ["data set", "variant", "ours"], rows))
    return "".join(parts)


def _medium_row(row: Row, entry: dict[str, Any]) -> list[str]:
    mean = float(np.mean(entry["scores"]))
    bars = [bar for bar in (row.paper, row.authors) if bar is not None]
    reached = ", ".join("yes" if mean >= bar else f"no ({mean - bar:+.1f})" for bar in bars)
    shown = ["" if bar is None else str(bar) for bar in (row.paper, row.authors)]
    ours = [_spread(entry["scores"]), str(len(entry["scores"])), _spread(entry["validation"])]
    return [row.dataset, *ours, *shown, reached, f"{entry['seconds']:.0f}"]


def _spread(scores: Sequence[float]) -> str:
    return f"{np.mean(scores):.1f} ± {np.std(scores):.1f}"


def _markdown(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"\n## {title}\n", f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"
