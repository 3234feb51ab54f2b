"""`sgf-train tune`: search settings by validation scores and write the best as a recipe."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

from training.cli.events import EventWriter
from training.cli.options import DataOptions, TuneOptions
from training.cli.terminal import print_result, read_data, read_settings, stop_signals
from training.data import datasets
from training.data.labelled import LabelledGraph
from training.fit.settings import Recipe, write_recipe
from training.fit.tuning import FINAL_RUNS, FINALISTS, SEARCH_RUNS, SearchResult, tune


def tune_settings(options: TuneOptions, _events: EventWriter) -> int:
    settings, dataset = read_settings(options)
    if options.splits is None:
        folds = [read_data(options, dataset)]
    else:
        folds = [datasets.load(str(options.data or dataset), split) for split in range(options.splits)]
    study = options.study or options.out.with_suffix(".trials.db")
    best = search_settings(options, folds, options.trials, settings, study, ctrl_c_stops=False)
    note = (
        f"Chosen by validation only: {best.trials} trials of `sgf-train tune`, up to {SEARCH_RUNS} runs each, on\n"
        f"{len(folds)} split(s), then the best {FINALISTS} again with {FINAL_RUNS} runs each.\n"
        f"Mean validation {folds[0].metric} of the chosen settings: {best.score:.4f}."
    )
    write_recipe(options.out, Recipe(options.out.stem, str(options.data or dataset), best.settings, note))
    result = {"recipe": str(options.out), "settings": best.settings, "validation": best.score, "trials": best.trials}
    text = f"{options.out}: validation {folds[0].metric} {best.score:.4f} after {best.trials} trials"
    print_result(options, result, text)
    return 0


def search_settings(
    options: DataOptions,
    folds: list[LabelledGraph],
    trials: int,
    fixed: dict[str, Any],
    study: Path | None,
    *,
    ctrl_c_stops: bool,
) -> SearchResult:
    """Searches the settings that are not fixed.

    Ctrl-C ends the search and chooses among the trials so far. With `ctrl_c_stops` it ends the command: a search before a
    training would otherwise continue, and train and publish.
    """

    def show(text: str) -> None:
        if not options.json and not options.quiet:
            sys.stderr.write(f"{text}\n")

    def stop_requests() -> int:
        return sum(1 if number == signal.SIGINT and not ctrl_c_stops else 2 for number in received)

    with stop_signals() as received:
        return tune(
            folds,
            trials,
            fixed=fixed,
            study=study,
            on_trial=lambda number, score: show(f"trial {number} of {trials}: validation {score:.4f}"),
            on_finalists=lambda count: show(f"the best {count} once more, {FINAL_RUNS} runs each"),
            stop_requests=stop_requests,
        )
