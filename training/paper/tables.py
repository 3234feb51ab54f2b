"""Runs the recipes for a table of the paper, and shows baselines and the published figures beside the results.

medium      the seven medium-sized graphs, with the recipes, beside a GCN, PyG's SGFormer and baselines on the same splits
fresh       20 new splits of Cora, Citeseer and chameleon that no recipe has seen
labels      fewer labels: 50 % to 1 % of the nodes train
ablation    the share of the graph branch, from attention alone to no attention
attention   other attention functions (softmax, that of GAT, NodeFormer's kernel) in place of the linear attention
depth       one, two and three attention layers, with the time of an epoch
defaults    graphs without a recipe: the default settings beside a search of 40 trials (hours)
page        runs nothing: writes the page and the pictures again

Runs are stored as they finish: the same command continues a stopped table.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from model_store.cli.parser import CommandParser
from model_store.cli.terminal import print_output
from training.cli.events import EventWriter
from training.cli.options import TableOptions
from training.paper.contenders import MODELS, PYG, Contender, contenders, ours, recipe_for, run_ours, variant
from training.paper.labels import DEPTHS, FUNCTIONS, NO_ATTENTION, alpha_label, depth_label, share_label
from training.paper.page import write_page
from training.paper.published_figures import ALPHA, FRESH, FRESH_SPLITS, LABEL_SHARES, LABELS, MEDIUM, VARIANTS
from training.paper.results import RESULTS, Entry, ResultsFile
from training.paper.splits import Load, fresh_split, random_split_of, stored_split
from training.paper.unseen_graphs import (
    DEFAULTS,
    SEARCHED,
    UNSEEN,
    OnProgress,
    SearchProgress,
    load_unseen,
    searched_settings,
    untuned_settings,
)

DEFAULT_RUNS = 5


@dataclass(frozen=True)
class Cell:
    """A cell of a table: what is run, on which splits."""

    dataset: str
    load: Load
    contender: Callable[[OnProgress], Contender]
    """Made when the cell is run, because a search for its settings may take hours. The search reports its progress."""
    label: str
    runs: int = DEFAULT_RUNS
    same_split: bool = False
    """Whether all runs have the same split."""


def parser() -> CommandParser:
    parser = CommandParser("sgf-train table", description=__doc__)
    parser.add_argument("table", choices=[*TABLES, "page"])
    runs = "runs per cell (default: 5; chameleon: its 10 splits; fresh: 20)"
    parser.add_argument("--seeds", type=int, choices=range(1, 101), metavar="N", help=runs)
    names = sorted({*(row.dataset for row in MEDIUM), *UNSEEN})
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help="these data sets only")
    parser.add_argument("--models", nargs="+", choices=MODELS, metavar="MODEL", help=f"only these of {', '.join(MODELS)}")
    about = "JSON of all tables; a .md page and .svg pictures are written beside it"
    parser.add_argument("--results", type=Path, default=RESULTS, help=about)
    return parser


def run_table(options: TableOptions, _events: EventWriter) -> int:
    results = ResultsFile(options.results)
    cells = list(TABLES[options.table]()) if options.table in TABLES else []
    cells = [cell for cell in cells if not options.only or cell.dataset in options.only]
    cells = [cell for cell in cells if not options.models or cell.label in options.models]
    for number, cell in enumerate(cells, start=1):
        try:
            entry = run_cell(results, options.table, cell, options.seeds or cell.runs, f"[{number}/{len(cells)}]")
        except ValueError as error:  # a model that this data set does not allow
            _show(f"[{number}/{len(cells)}] {error}")
            continue
        print_output(f"{cell.dataset}, {cell.label}: {entry}  ({len(entry.scores)} runs, {entry.seconds:.0f} s)")
    write_page(results)
    return 0


def run_cell(results: ResultsFile, table: str, cell: Cell, runs: int, counter: str) -> Entry:
    """Makes the missing runs of a cell. Stores each, and writes the page with it."""

    def on_progress(progress: SearchProgress) -> None:
        results.record_progress(cell.dataset, progress)
        write_page(results)

    contender = cell.contender(on_progress)
    if cell.same_split and not contender.random:
        runs = 1
    command = f"sgf-train table {table} --only {cell.dataset}"
    stored = results.entry(table, cell.dataset, cell.label, contender.digest())
    entry = stored or Entry(settings=contender.digest(), search=contender.search, command=command)
    for run in range(len(entry.scores), runs):
        start = time.perf_counter()
        scores = contender.run(cell.load(run), contender.settings, run)
        seconds = time.perf_counter() - start
        entry = entry.with_run(scores, seconds)
        results.record(table, cell.dataset, cell.label, entry)
        write_page(results)
        _show(f"{counter} {cell.dataset}, {cell.label}: run {run + 1} of {runs}, test {scores.test:.1f}, {seconds:.0f} s")
    return entry


def _show(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _medium() -> Iterator[Cell]:
    for row in MEDIUM:
        for contender in contenders(row.dataset):
            load = stored_split(row.dataset, row.split)
            yield Cell(row.dataset, load, _without_search(contender), contender.label, row.runs, row.split is not None)


def _fresh() -> Iterator[Cell]:
    for name in FRESH:
        for contender in contenders(name):
            if contender.label != PYG:
                yield Cell(name, fresh_split(name), _without_search(contender), contender.label, FRESH_SPLITS)


def _labels() -> Iterator[Cell]:
    for name in LABELS:
        for share in LABEL_SHARES:
            contender = ours(recipe_for(name, share))
            yield Cell(name, random_split_of(name, share), _without_search(contender), share_label(share))


def _ablation() -> Iterator[Cell]:
    for name, figures in ALPHA.items():
        load = random_split_of(name, 0.5) if name in LABELS else stored_split(name, None)
        for alpha in figures:
            yield Cell(name, load, _without_search(ours(name, alpha=alpha)), alpha_label(alpha))
        yield Cell(name, load, _without_search(ours(name, alpha=1.0)), NO_ATTENTION)


def _attention() -> Iterator[Cell]:
    for name, split in VARIANTS.items():
        for function in FUNCTIONS:
            contender = variant(name, function, function)
            yield Cell(name, stored_split(name, split), _without_search(contender), function)


def _depth() -> Iterator[Cell]:
    for name, split in VARIANTS.items():
        for depth in DEPTHS:
            contender = variant(name, depth_label(depth), "linear", depth)
            yield Cell(name, stored_split(name, split), _without_search(contender), contender.label)


def _defaults() -> Iterator[Cell]:
    for name in UNSEEN:
        load: Load = partial(load_unseen, name)
        yield Cell(name, load, partial(_untuned, name), DEFAULTS)
        yield Cell(name, load, partial(_searched, name), SEARCHED)


def _untuned(name: str, _on_progress: OnProgress) -> Contender:
    return Contender(DEFAULTS, untuned_settings(name), run_ours, "none")


def _searched(name: str, on_progress: OnProgress) -> Contender:
    return Contender(SEARCHED, searched_settings(name, on_progress), run_ours, SEARCHED)


def _without_search(contender: Contender) -> Callable[[OnProgress], Contender]:
    return lambda _: contender


TABLES: dict[str, Callable[[], Iterator[Cell]]] = {
    "medium": _medium,
    "fresh": _fresh,
    "labels": _labels,
    "ablation": _ablation,
    "attention": _attention,
    "depth": _depth,
    "defaults": _defaults,
}
