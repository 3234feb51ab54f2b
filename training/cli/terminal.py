"""What the commands share: the data and settings that options name, signals, progress, and the printed result."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from tqdm import tqdm

from model_store.run_contract import EpochEvent
from sgformer import ConfigError
from training.cli.events import EpochPace, EventWriter
from training.cli.options import DataOptions, Options
from training.data import datasets
from training.data.labelled import UNUSED, LabelledGraph
from training.data.splits import HALF, random_split
from training.data.user_data import read_user_data
from training.fit.loop import Epoch, TrainingConfig
from training.fit.settings import read_recipe

STOPPED = 130
DEFAULT_DATASET = "digits"


def read_settings(options: DataOptions) -> tuple[dict[str, Any], str]:
    """The settings of the recipe with those of the flags over them, and the name of the data set."""
    recipe = read_recipe(options.recipe) if options.recipe else None
    dataset = options.dataset or (recipe.dataset if recipe and not options.data else DEFAULT_DATASET)
    return (recipe.settings if recipe else {}) | options.settings, dataset


def read_data(options: DataOptions, dataset: str) -> LabelledGraph:
    seed, split = options.settings.get("seed", 0), options.split
    shares = split if isinstance(split, tuple) else None
    if options.data:
        if shares is None and split:
            raise ConfigError(
                "--split K is for data sets with stored splits; for your own data give shares, e.g. 0.5/0.25/0.25"
            )
        return read_user_data(options.data, options.task, shares or HALF, seed)
    if options.task is not None:
        raise ConfigError("--task is for your own data; a data set has its own")
    if not isinstance(split, tuple):
        return datasets.load(dataset, split, seed)
    data = datasets.load(dataset, 0, seed)
    return replace(data, split=random_split(data.split != UNUSED, seed, split))


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM in a list instead of ending the process."""
    received: list[int] = []
    handlers = {
        number: signal.signal(number, lambda which, _frame: received.append(which))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def progress(
    options: Options, events: EventWriter, data: LabelledGraph, training: TrainingConfig
) -> Iterator[Callable[[Epoch], None]]:
    """Yields a function to call after every epoch: it moves a progress bar and writes events."""
    disable = True if options.json or options.quiet else None  # None: no bar unless stderr is a terminal
    pace = EpochPace()
    with tqdm(total=training.epochs, desc=data.name, unit="epoch", disable=disable) as bar:

        def show(epoch: Epoch) -> None:
            bar.set_postfix({"loss": f"{epoch.loss:.3f}", data.metric: f"{epoch.validation:.4f}"}, refresh=False)
            bar.update()
            if pace.due() or epoch.number in (1, training.epochs):
                events.write(EpochEvent(**asdict(epoch), epochs=training.epochs, metric=data.metric))

        yield show


def print_result(options: Options, result: dict[str, Any], text: str) -> None:
    sys.stdout.write((json.dumps(result) if options.json else text) + "\n")
