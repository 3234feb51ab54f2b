"""What `sgf-train` does: train and tune; `refreshing` and `tables` have the rest."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from model_store import Store
from model_store.cli.terminal_tables import published
from model_store.format.names import checked_model
from model_store.run_contract import JOB_KEY, DataEvent, EpochEvent, FinishedEvent, StoppedEvent
from sgformer import ConfigError
from training.cli.demo import prove
from training.cli.events import EpochPace
from training.data import datasets
from training.data.labelled import UNUSED, LabelledGraph
from training.data.splits import HALF, random_split
from training.data.user_data import read_user_data
from training.fit.loop import Epoch, Stopped, TrainedModel, TrainingConfig, train
from training.fit.settings import Recipe, configurations, read_recipe, training_config, write_recipe
from training.fit.tuning import FINAL_RUNS, FINALISTS, SEARCH_RUNS, Found, tune
from training.release.delivery import deliver
from training.release.gate import Contestant, judge
from training.release.lineage import Lineage
from training.release.publishing import publish
from training.report.page import report

STOPPED = 130


def train_model(options: argparse.Namespace) -> int:
    settings = _settings(options)
    training_config(settings)  # a bad setting, and a bad name, are told before any data is read
    name = checked_model(options.model or _told_name(options))
    data = _data(options)
    if options.tune:
        settings |= _tuned(options, data, settings)
    config, training = configurations(data, settings)
    lineage = Lineage.of(Store(options.store), name, config, options.warm_start)
    about = config.to_dict() | asdict(training)
    options.events.write(DataEvent(**_about_data(data), settings=about, **lineage.to_dict()))
    checkpoint = _checkpoint(options, name)
    start = time.perf_counter()
    try:
        with _stop_signals() as stopping, _progress(options, data, training) as show:
            trained = train(
                config,
                data,
                training,
                show,
                checkpoint=checkpoint,
                checkpoint_seconds=options.checkpoint_every,
                resume=options.resume,
                stop=lambda: bool(stopping),
                start=lineage.start,
            )
    except Stopped:
        options.events.write(StoppedEvent())
        sys.stderr.write(
            f"stopped; the same command with --resume goes on from {checkpoint}\n" if checkpoint else "stopped\n"
        )
        return STOPPED
    seconds = time.perf_counter() - start
    result = _result(data, trained, seconds)
    if not options.no_publish:
        result |= _publish(options, name, data, trained, training, seconds, lineage)
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)  # not before: a run that is killed while it publishes is still there
    text = _text(data, trained, result)
    if data.name == "digits":
        proof = prove(trained.model, training.seed)
        result["new_node"] = proof.to_dict()
        text += f"\n\n{proof}"
    options.events.write(FinishedEvent(result=result))
    print_result(options, result, text)
    return 0


def _checkpoint(options: argparse.Namespace, name: str) -> Path | None:
    if options.no_checkpoint:
        return None
    path: Path = options.store.parent / "training" / f"{name}.safetensors"
    if path.exists() and not options.resume:
        path.replace(path.with_suffix(".earlier.safetensors"))  # of a run that was stopped: not ours to lose
    return path


def _told_name(options: argparse.Namespace) -> str:
    source = options.data.resolve().stem if options.data else options.dataset or "digits"
    return re.sub(r"[^a-z0-9]+", "-", source.lower()).strip("-")[:64] or "model"


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    flags = {name: getattr(options, name) for name in options.settings if getattr(options, name) is not None}
    recipe = read_recipe(options.recipe) if options.recipe else None
    if recipe and not options.dataset and not options.data:
        options.dataset = recipe.dataset
    return (recipe.settings if recipe else {}) | flags


def _data(options: argparse.Namespace) -> LabelledGraph:
    seed, shares = options.seed or 0, options.split if isinstance(options.split, tuple) else None
    if options.data:
        if shares is None and options.split:
            raise ConfigError(
                "--split K is for data sets with stored splits; for your own data give shares, e.g. 0.5/0.25/0.25"
            )
        return read_user_data(options.data, options.task, shares or HALF, seed)
    if options.task is not None:
        raise ConfigError("--task is for your own data; a data set has its own")
    data = datasets.load(options.dataset or "digits", 0 if shares else options.split, seed)
    return data if shares is None else replace(data, split=random_split(data.split != UNUSED, seed, shares))


def search_settings(options: argparse.Namespace) -> int:
    """`sgf-train tune`: a search whose result is a recipe."""
    settings = _settings(options)
    source = str(options.data or options.dataset or "digits")
    folds = [_data(options)] if options.splits is None else [datasets.load(source, split) for split in range(options.splits)]
    study = options.study or options.out.with_suffix(".trials.db")
    found = _search(options, folds, options.trials, settings, study, ctrl_c_stops=False)
    text = (
        f"Chosen by validation only: {found.trials} trials of `sgf-train tune`, up to {SEARCH_RUNS} runs each, on\n"
        f"{len(folds)} split(s), then the best {FINALISTS} again with {FINAL_RUNS} runs each.\n"
        f"Mean validation {folds[0].metric} of the chosen one: {found.score:.4f}."
    )
    write_recipe(options.out, Recipe(options.out.stem, source, found.settings, text))
    result = {"recipe": str(options.out), "settings": found.settings, "validation": found.score, "trials": found.trials}
    print_result(
        options, result, f"{options.out}: validation {folds[0].metric} {found.score:.4f} after {found.trials} trials"
    )
    return 0


def _tuned(options: argparse.Namespace, data: LabelledGraph, settings: dict[str, Any]) -> dict[str, Any]:
    """What was given is kept; the rest is searched."""
    return _search(options, [data], options.tune, settings, None, ctrl_c_stops=True).settings


def _search(
    options: argparse.Namespace,
    folds: list[LabelledGraph],
    trials: int,
    fixed: dict[str, Any],
    study: Path | None,
    *,
    ctrl_c_stops: bool,
) -> Found:
    """Ctrl-C goes on to the best so far, unless that would be trained and published behind its author's back."""

    def tell(text: str) -> None:
        if not options.json and not options.quiet:
            sys.stderr.write(f"{text}\n")

    def stops() -> int:
        return sum(1 if number == signal.SIGINT and not ctrl_c_stops else 2 for number in received)

    with _stop_signals() as received:
        return tune(
            folds,
            trials,
            fixed=fixed,
            study=study,
            on_trial=lambda number, score: tell(f"trial {number} of {trials}: validation {score:.4f}"),
            on_finalists=lambda count: tell(f"the best {count} once more, {FINAL_RUNS} runs each"),
            stops=stops,
        )


def _publish(
    options: argparse.Namespace,
    name: str,
    data: LabelledGraph,
    trained: TrainedModel,
    training: TrainingConfig,
    seconds: float,
    lineage: Lineage,
) -> dict[str, Any]:
    store = Store(options.store)
    regime = "full graph" if training.batch_nodes is None else "random partition, evaluated on the full graph"
    about = asdict(training) | {
        "regime": regime,
        "recipe": options.recipe,
        "best_epoch": trained.best.number,
        "seconds": seconds,
        "split": data.drawn,
        JOB_KEY: options.job,
        **lineage.to_dict(),
    }
    options.events.check_fence()
    scores = {f"{part}_{metric}": value for part, values in trained.scores.items() for metric, value in values.items()}
    version = publish(
        trained.model,
        data.graph,
        store=store,
        name=name,
        node_ids=data.node_ids,
        class_names=data.class_names,
        dataset=_about_data(data),
        training=about,
        scores=scores,
        report=report(f"{name}: training report", data, trained, training),
        states=options.states,
    )
    challenger = Contestant(trained.model.config, trained.model.weights())
    outcome = deliver(
        store.model(name),
        version,
        options.activate,
        lambda champion: judge(challenger, champion, data),
        options.events,
        options.keep,
    )
    return {"model": name, "version": version} | outcome


def _about_data(data: LabelledGraph) -> dict[str, Any]:
    about: dict[str, Any] = {"name": data.name, "sha256": data.sha256()}
    return about | ({"features": list(data.feature_names)} if data.feature_names else {})


def _result(data: LabelledGraph, trained: TrainedModel, seconds: float) -> dict[str, Any]:
    return {
        "dataset": data.name,
        "nodes": data.graph.num_nodes,
        "edges": data.graph.num_edges,
        "epochs": len(trained.history),
        "best_epoch": asdict(trained.best),
        "scores": trained.scores,
        "seconds": seconds,
    }


def _text(data: LabelledGraph, trained: TrainedModel, result: dict[str, Any]) -> str:
    part = "test" if "test" in trained.scores else "validation"
    scores = ", ".join(f"{name} {value:.4f}" for name, value in trained.scores[part].items())
    lines = [
        f"{data.name}: {data.graph.num_nodes:,} nodes, {data.graph.num_edges:,} edges, trained in {result['seconds']:.1f} s",
        f"{part} {scores} (best epoch {trained.best.number} by validation {data.metric})",
    ]
    if "version" in result:
        lines.append(published(result["model"], result["version"], data.graph.num_nodes, result["live"]))
    if "verdict" in result:
        lines.append(result["verdict"]["reason"])
    return "\n".join(lines)


def print_result(options: argparse.Namespace, result: dict[str, Any], text: str) -> None:
    sys.stdout.write((json.dumps(result) if options.json else text) + "\n")


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """SIGINT and SIGTERM end training after the present epoch; the list is empty until one comes."""
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda which, _frame: received.append(which))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _progress(options: argparse.Namespace, data: LabelledGraph, training: TrainingConfig) -> Iterator[Any]:
    # disable=None: a bar for a person at a terminal, silence in a log file.
    hidden = True if options.json or options.quiet else None
    pace = EpochPace()
    with tqdm(total=training.epochs, desc=data.name, unit="epoch", disable=hidden) as bar:

        def show(epoch: Epoch) -> None:
            bar.set_postfix({"loss": f"{epoch.loss:.3f}", data.metric: f"{epoch.validation:.4f}"}, refresh=False)
            bar.update()
            if pace.due() or epoch.number in (1, training.epochs):
                options.events.write(EpochEvent(**asdict(epoch), epochs=training.epochs, metric=data.metric))

        yield show
