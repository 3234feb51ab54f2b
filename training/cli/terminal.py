"""What the commands share: the data and settings that options name, signals, progress, and the printed result."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from tqdm import tqdm

from model_store import FeatureSchema, Manifest, Store, StoreError, UnknownModel
from model_store.cli.terminal import print_output
from model_store.live_graph.current_data import CurrentData, current_data, open_live_graph
from model_store.run_contract import EpochEvent
from sgformer import ConfigError
from sgformer.full_graph.collectives import broadcast
from training.cli.events import EpochPace, EventWriter
from training.cli.options import LIVE, DataOptions, Options, ReadingOptions
from training.data import datasets
from training.data.labelled import UNUSED, LabelledGraph
from training.data.live import label_live_graph
from training.data.splits import HALF, random_split
from training.data.tables.reading import Reading
from training.data.user_data import read_user_data
from training.fit.loop import Epoch
from training.fit.processes import rank
from training.fit.settings import MODEL_SETTINGS, TRAINING_SETTINGS, TrainingConfig, read_recipe
from training.fit.tasks import TASK_METRICS

DEFAULT_DATASET = "digits"
BAR = "{desc} {percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} epochs, {remaining} left{postfix}"
"""Short enough for the loss and the score to fit into 80 columns."""


def read_settings(options: DataOptions) -> tuple[dict[str, Any], str]:
    """The settings of the recipe with those of the flags over them, and the name of the data set."""
    recipe = read_recipe(options.recipe) if options.recipe else None
    dataset = options.dataset or (recipe.dataset if recipe and not options.data else DEFAULT_DATASET)
    return (recipe.settings if recipe else {}) | options.settings, dataset


def read_data(options: DataOptions, dataset: str, live: Manifest | None = None) -> LabelledGraph:
    """Reads the data that options name, and says on stderr what was assumed about it.

    Args:
        live: the manifest of the live version of the model; without flags about tables, tables are read as for this version.
    """
    if not options.data and options.reading != Reading():
        raise ConfigError(f"{options.reading}: for your own tables (--data), not for a data set")
    data = _read_data(options, dataset, live)
    print_notes(data.notes)
    return data


def chosen_reading(options: ReadingOptions, earlier: Manifest | None) -> tuple[Reading, FeatureSchema | None]:
    """The flags about tables, or if none is given the flags and the schema of an earlier version."""
    if options.reading != Reading() or earlier is None or earlier.reading is None:
        return options.reading, None
    reading = Reading.from_json(earlier.reading)
    if reading != Reading():
        print_notes([f"tables are read as for the earlier version: {reading}"])
    return reading, earlier.features


def live_manifest(store: Store, model: str) -> Manifest | None:
    """The manifest of the live version; None if there is none, or if it is damaged, so that a training can replace it."""
    try:
        versions = store.model(model)
        live = versions.live()
        return None if live is None else versions.manifest(live)
    except UnknownModel:
        return None
    except StoreError as error:
        sys.stderr.write(f"the live version of {model} cannot be read, and its rules for tables are not used: {error}\n")
        return None


def model_name(options: DataOptions, store: Store, dataset: str) -> str:
    """The name that the options give, or the default: for the live graph the only model, else the name of the data."""
    if options.model or options.data is LIVE:
        return options.model or store.only_model()
    source = options.data.resolve().stem if options.data else dataset
    return re.sub(r"[^a-z0-9]+", "-", source.lower()).strip("-")[:64] or "model"


def live_settings(store: Store, model: str) -> dict[str, Any]:
    """The settings of the live version, which a training on its graph keeps unless a recipe or a flag changes them."""
    manifest = live_manifest(store, model)
    stored = {} if manifest is None else manifest.config.to_dict() | dict(manifest.training)
    return {setting: stored[setting] for setting in MODEL_SETTINGS | TRAINING_SETTINGS if setting in stored}


@contextmanager
def open_live_data(store: Store, model: str) -> Iterator[CurrentData]:
    """Yields the live graph of a model: all processes of a run have the graph that rank 0 has read, also while it changes.

    The live version stays open, so the changes after it stay in the log until the caller has published them.
    """
    version, sequence = (None, None) if rank() == 0 else broadcast(None)
    with store.model(model).open(version) as snapshot, open_live_graph(snapshot, store.redis, sequence) as (live, _):
        if rank() == 0:
            broadcast((int(snapshot.folder.name), live.position.sequence))
        yield current_data(live)


@contextmanager
def open_training_data(options: DataOptions, store: Store, model: str, dataset: str) -> Iterator[LabelledGraph]:
    """Reads the data that options name, for a model. Without flags about tables, tables are read as for the live version."""
    if options.data is not LIVE:
        yield read_data(options, dataset, live_manifest(store, model))
        return
    if options.reading != Reading() or options.task or options.split:
        raise ConfigError("--data live is read as it is served: it takes no --split, no --task and no flags about tables")
    with open_live_data(store, model) as current:
        training, task = current.manifest.training, current.manifest.config.task
        data = label_live_graph(current, training.get("metric") or TASK_METRICS[task][0])
        data.check_parts("the live graph")
        yield data


def _read_data(options: DataOptions, dataset: str, live: Manifest | None) -> LabelledGraph:
    seed, split = options.settings.get("seed", 0), options.split
    shares = split if isinstance(split, tuple) else None
    if options.data:
        if shares is None and split:
            raise ConfigError(
                "--split K is for data sets with stored splits; for your own data give shares, e.g. 0.5/0.25/0.25"
            )
        return read_user_data(options.data, options.task, shares or HALF, seed, *chosen_reading(options, live))
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
    disable = True if options.json or options.quiet or rank() > 0 else None  # None: no bar unless stderr is a terminal
    pace = EpochPace()
    with tqdm(total=training.epochs, desc=data.name, bar_format=BAR, disable=disable) as bar:

        def show(epoch: Epoch) -> None:
            bar.set_postfix({"loss": f"{epoch.loss:.3f}", data.metric: f"{epoch.validation:.4f}"}, refresh=False)
            bar.update()
            if pace.due() or epoch.number in (1, training.epochs):
                events.write(EpochEvent(**asdict(epoch), epochs=training.epochs, metric=data.metric))

        yield show


def print_notes(notes: Iterable[str]) -> None:
    """Prints notes also with --quiet and --json: the log of a job must say what was left out, filled in or assumed."""
    if rank() > 0:
        return  # the first process prints the same
    sys.stderr.writelines(f"{note}\n" for note in notes)


def print_result(options: Options, result: dict[str, Any], text: str) -> None:
    print_output(json.dumps(result) if options.json else text)
