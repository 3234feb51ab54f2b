"""The paper's tables, side by side: ours, the paper's, and what the authors' code gives on the same splits.

medium      the seven medium-sized graphs, with the recipes
labels      fewer labels: 50 % to 1 % of the nodes train
ablation    the share of the graph branch, down to attention alone and up to (almost) none
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from training.data import datasets
from training.data.labelled import LabelledGraph
from training.data.splits import random_split
from training.fit.loop import train
from training.fit.settings import configurations, read_recipe
from training.paper.published_figures import ALPHA, LABEL_SHARES, LABELS, MEDIUM
from training.paper.results import NO_ATTENTION, RESULTS, Outcome, alpha_label, record, share_label

QUARTER = 0.25
Load = Callable[[int], LabelledGraph]
"""The data for one seed."""


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
        if not options.only or row.dataset in options.only:
            split = row.split
            load = _usual(row.dataset) if split is None else _fixed(row.dataset, split)
            goals = f"paper {row.paper or '-'}, authors' code {row.authors or '-'}"
            _keep(options, "medium", run(row.dataset, load, options.seeds, "recipe"), goals)
    return 0


def labels(options: argparse.Namespace) -> int:
    for name, figures in LABELS.items():
        if not options.only or name in options.only:
            for share, paper in zip(LABEL_SHARES, figures, strict=True):
                outcome = run(name, _share(name, share), options.seeds, share_label(share))
                _keep(options, "labels", outcome, f"paper {paper}")
    return 0


def ablation(options: argparse.Namespace) -> int:
    for name, figures in ALPHA.items():
        if not options.only or name in options.only:
            load = _share(name, 0.5) if name in LABELS else _usual(name)
            for alpha, paper in figures.items():
                outcome = run(name, load, options.seeds, alpha_label(alpha), alpha=alpha)
                _keep(options, "ablation", outcome, f"paper {paper}")
            _keep(options, "ablation", run(name, load, options.seeds, NO_ATTENTION, alpha=0.999), "paper -")
    return 0


TABLES: dict[str, Callable[[argparse.Namespace], int]] = {"medium": medium, "labels": labels, "ablation": ablation}


def run(dataset: str, load: Load, seeds: int, label: str, **changes: Any) -> Outcome:
    """The data set's recipe with these changes, once per seed. The test score is of the best epoch by validation."""
    settings = read_recipe(dataset).settings | changes
    tested, validated = [], []
    start = time.perf_counter()
    for seed in range(seeds):
        data = load(seed)
        config, training = configurations(data, settings | {"seed": seed})
        trained = train(config, data, training)
        tested.append(100 * trained.scores["test"][data.metric])
        validated.append(100 * trained.best.validation)
    return Outcome(dataset, label, tested, validated, time.perf_counter() - start)


def _usual(dataset: str) -> Load:
    """The stored splits, in turn."""
    return lambda seed: datasets.load(dataset, split=seed, seed=seed)


def _fixed(dataset: str, split: int) -> Load:
    return lambda seed: datasets.load(dataset, split=split, seed=seed)


def _share(dataset: str, share: float) -> Load:
    """A share of all nodes trains, a quarter validates, a quarter tests, at random."""

    def load(seed: int) -> LabelledGraph:
        data = datasets.load(dataset)
        return replace(data, split=random_split(data.labels >= 0, seed, (share, QUARTER, QUARTER)))

    return load


def _keep(options: argparse.Namespace, table: str, outcome: Outcome, goals: str) -> None:
    sys.stdout.write(f"{outcome.dataset}, {outcome.label}: {outcome}  ({goals}, {outcome.seconds:.0f} s)\n")
    sys.stdout.flush()
    record(options.results, table, outcome)
