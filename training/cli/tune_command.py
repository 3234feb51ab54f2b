"""`sgf-train tune`: search settings by validation scores and write the best as a recipe."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from model_store import Store
from model_store.cli.terminal import default_log
from sgformer.device import choose_device
from training.cli.events import EventWriter
from training.cli.launching import follow_launcher
from training.cli.options import DataOptions, TuneOptions
from training.cli.terminal import model_name, open_training_data, print_result, read_settings, stop_signals
from training.data import datasets
from training.data.labelled import LabelledGraph
from training.fit.settings import Recipe, read_recipe, write_recipe
from training.fit.tuning import ABORT, FINAL_RUNS, SEARCH_RUNS, Search, SearchResult, StopLevel

TRIALS_SHARE = 0.75
"""The share of `--at-most` for the trials; the rest is for the runs of the best of them."""


def tune_settings(options: TuneOptions, _events: EventWriter) -> int:
    options = replace(options, device=choose_device(options.device))
    start = time.monotonic()
    settings, dataset = read_settings(options)
    study = options.study or options.out.with_suffix(".trials.db")
    with _open_folds(options, dataset) as folds, stop_signals() as received:
        stop = _stop_level(received, start, options.at_most)
        begin = read_recipe(options.begin).settings if options.begin else None
        search = Search(folds, settings, study, stop, begin, options.device)
        with _helpers(options, settings, dataset, study, start):
            search.run_trials(options.trials, _trial_printer(options, options.trials))
        best = search.choose(_finalists_printer(options))
    write_recipe(options.out, Recipe(options.out.stem, str(options.data or dataset), best.settings, _note(best, folds)))
    result = {"recipe": str(options.out), "settings": best.settings, "validation": best.score, "trials": best.trials}
    score = "the defaults, because no trial was complete" if best.score is None else _score(best, folds)
    print_result(options, result, f"{options.out}: {score} after {best.trials} trials")
    return 0


def search_settings(options: DataOptions, data: LabelledGraph, trials: int, fixed: dict[str, Any]) -> SearchResult:
    """Searches the settings that are not fixed, before a training.

    Ctrl-C ends the command without a training, because no settings have been chosen.
    """
    with stop_signals() as received:
        search = Search([data], fixed, stop=lambda: ABORT if received else 0, device=options.device)
        search.run_trials(trials, _trial_printer(options, trials))
        return search.choose(_finalists_printer(options))


@contextmanager
def _open_folds(options: TuneOptions, dataset: str) -> Iterator[list[LabelledGraph]]:
    """Yields the data, once per split."""
    if options.splits is not None:
        yield [datasets.load(str(options.data or dataset), split) for split in range(options.splits)]
        return
    store = Store(options.store, redis=default_log())
    with open_training_data(options, store, model_name(options, store, dataset), dataset) as data:
        yield [data]


def _stop_level(received: list[int], start: float, seconds: int | None) -> StopLevel:
    """Ctrl-C, or TRIALS_SHARE of the time, ends the trials; a second Ctrl-C, or all of the time, also ends the runs of the
    finalists. SIGTERM ends the command.
    """

    def level() -> int:
        pressed = sum(1 if number == signal.SIGINT else ABORT for number in received)
        share = (time.monotonic() - start) / seconds if seconds else 0.0
        return max(pressed, int(share >= TRIALS_SHARE) + int(share >= 1))

    return level


@contextmanager
def _helpers(
    options: TuneOptions, settings: dict[str, Any], dataset: str, study: Path, start: float
) -> Iterator[list[BaseProcess]]:
    """Runs trials of the same search in `--jobs` - 1 more processes. At the end, stops them."""
    spawn = multiprocessing.get_context("spawn")
    helpers: list[BaseProcess] = [
        spawn.Process(target=_help, args=(options, settings, dataset, study, start)) for _ in range(options.jobs - 1)
    ]
    for helper in helpers:
        helper.start()
    try:
        yield helpers
    finally:
        for helper in helpers:
            helper.terminate()
        for helper in helpers:
            helper.join()


def _help(options: TuneOptions, settings: dict[str, Any], dataset: str, study: Path, start: float) -> None:
    follow_launcher()
    with _open_folds(options, dataset) as folds, stop_signals() as received:
        search = Search(folds, settings, study, _stop_level(received, start, options.at_most), device=options.device)
        search.run_trials(options.trials, _trial_printer(options, options.trials))


def _trial_printer(options: DataOptions, trials: int) -> Any:
    return lambda number, score: _print_progress(options, f"trial {number} of {trials}: validation {score:.4f}")


def _finalists_printer(options: DataOptions) -> Any:
    return lambda count: _print_progress(options, f"the best {count} once more, {FINAL_RUNS} runs each")


def _print_progress(options: DataOptions, text: str) -> None:
    if not options.json and not options.quiet:
        sys.stderr.write(f"{text}\n")


def _score(best: SearchResult, folds: list[LabelledGraph]) -> str:
    return f"validation {folds[0].metric} {best.score:.4f}"


def _note(best: SearchResult, folds: list[LabelledGraph]) -> str:
    if best.score is None:
        return "The defaults: `sgf-train tune` was stopped before a trial was complete."
    again = f"then the best again with {best.runs} runs each" if best.runs else "and stopped before the best were run again"
    return (
        f"Chosen by validation only: {best.trials} trials of `sgf-train tune`, up to {SEARCH_RUNS} runs each, on\n"
        f"{len(folds)} split(s), {again}.\n"
        f"Mean validation {folds[0].metric} of the chosen settings: {best.score:.4f}."
    )
