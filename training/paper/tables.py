"""Runs the recipes for a table of the paper, and shows the published figures beside the results.

medium      the seven medium-sized graphs, with the recipes
labels      fewer labels: 50 % to 1 % of the nodes train
ablation    the share of the graph branch, from attention alone to almost no attention
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from training.cli.events import EventWriter
from training.cli.options import TableOptions
from training.data import datasets
from training.data.labelled import LabelledGraph
from training.data.splits import random_split
from training.fit.loop import train
from training.fit.settings import configurations, read_recipe
from training.paper.published_figures import ALPHA, LABEL_SHARES, LABELS, MEDIUM
from training.paper.results import NO_ATTENTION, RESULTS, TableEntry, alpha_label, record, share_label

QUARTER = 0.25
Load = Callable[[int], LabelledGraph]
"""Loads the data for a seed."""
Job = tuple[str, Load, str, dict[str, Any], str]
"""Data set, its loader, the label of the entry, changes to the recipe, and the published figures."""


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "sgf-train table", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=list(TABLES))
    parser.add_argument("--seeds", type=int, choices=range(1, 101), default=5, metavar="N", help="runs per data set")
    names = sorted({row.dataset for row in MEDIUM})
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help="these data sets only")
    parser.add_argument("--results", type=Path, default=RESULTS, help="JSON of all tables; a .md page is written beside it")
    return parser


def run_table(options: TableOptions, _events: EventWriter) -> int:
    for dataset, load, label, changes, published in TABLES[options.table]():
        if not options.only or dataset in options.only:
            entry = run_recipe(dataset, load, options.seeds, label, changes)
            sys.stdout.write(f"{dataset}, {label}: {entry}  ({published}, {entry.seconds:.0f} s)\n")
            sys.stdout.flush()
            record(options.results, options.table, entry)
    return 0


def run_recipe(dataset: str, load: Load, seeds: int, label: str, changes: dict[str, Any]) -> TableEntry:
    """Trains the data set's recipe with these changes, once per seed. Test scores are those of the best epoch."""
    settings = read_recipe(dataset).settings | changes
    test_scores, validation_scores = [], []
    start = time.perf_counter()
    for seed in range(seeds):
        data = load(seed)
        config, training = configurations(data, settings | {"seed": seed})
        trained = train(config, data, training)
        test_scores.append(100 * trained.scores["test"][data.metric])
        validation_scores.append(100 * trained.best.validation)
    return TableEntry(dataset, label, test_scores, validation_scores, time.perf_counter() - start)


def _medium() -> Iterator[Job]:
    for row in MEDIUM:
        published = f"paper {row.paper or '-'}, authors' code {row.authors or '-'}"
        yield row.dataset, _stored_split(row.dataset, row.split), "recipe", {}, published


def _labels() -> Iterator[Job]:
    for name, figures in LABELS.items():
        for share, paper in zip(LABEL_SHARES, figures, strict=True):
            yield name, _random_split(name, share), share_label(share), {}, f"paper {paper}"


def _ablation() -> Iterator[Job]:
    for name, figures in ALPHA.items():
        load = _random_split(name, 0.5) if name in LABELS else _stored_split(name, None)
        for alpha, paper in figures.items():
            yield name, load, alpha_label(alpha), {"alpha": alpha}, f"paper {paper}"
        yield name, load, NO_ATTENTION, {"alpha": 0.999}, "paper -"


TABLES: dict[str, Callable[[], Iterator[Job]]] = {"medium": _medium, "labels": _labels, "ablation": _ablation}


def _stored_split(dataset: str, split: int | None) -> Load:
    """The same stored split for all seeds; None: another one for each."""
    return lambda seed: datasets.load(dataset, split=seed if split is None else split, seed=seed)


def _random_split(dataset: str, share: float) -> Load:
    """A share of all nodes trains, a quarter validates, a quarter tests, at random."""

    def load(seed: int) -> LabelledGraph:
        data = datasets.load(dataset)
        return replace(data, split=random_split(data.labels >= 0, seed, (share, QUARTER, QUARTER)))

    return load
