"""What `sgf-train` does: train, refresh, table."""

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

from model_store import DataError, Store
from model_store.names import checked_model
from sgformer import ConfigError
from training import datasets
from training.demo import prove
from training.labelled import UNUSED, LabelledGraph, sha256_of
from training.loop import Epoch, Stopped, TrainedModel, TrainingConfig, train
from training.publishing import publish, refresh
from training.report import report
from training.settings import configurations, read_recipe, training_config
from training.splits import random_split
from training.user_data import read_user_data, read_user_graph

STOPPED = 130
TUNING_SEEDS = 2
DEFAULT_SHARES = (0.5, 0.25)


def train_model(options: argparse.Namespace) -> int:
    settings = _settings(options)
    training_config(settings)  # a bad setting, and a bad name, are told before any data is read
    name = checked_model(options.model or _told_name(options))
    data = _data(options)
    if options.tune:
        settings |= _tuned(options, data, settings)
    config, training = configurations(data, settings)
    checkpoint = Path(options.store).parent / "training" / f"{name}.safetensors"
    if checkpoint.exists() and not options.resume:
        checkpoint.replace(checkpoint.with_suffix(".earlier.safetensors"))  # of a run that was stopped: not ours to lose
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
            )
    except Stopped:
        sys.stderr.write(f"stopped; the same command with --resume goes on from {checkpoint}\n")
        return STOPPED
    seconds = time.perf_counter() - start
    result = _result(data, trained, seconds)
    if not options.no_publish:
        result |= _publish(options, name, data, trained, training, seconds)
    checkpoint.unlink(missing_ok=True)  # not before: a run that is killed while it publishes is still there
    text = _text(data, trained, result)
    if data.name == "digits":
        proof = prove(trained.model, training.seed)
        result["new_node"] = proof.to_dict()
        text += f"\n\n{proof}"
    _print(options, result, text)
    return 0


def refresh_model(options: argparse.Namespace) -> int:
    """The same weights over new data, which needs no labels."""
    store, path = Store(options.store), options.data
    graph, ids, features = read_user_graph(path)
    name = options.model or _only_model(store)
    dataset = {"name": path.name, "sha256": sha256_of(graph)} | ({"features": list(features)} if features else {})
    version = refresh(store, name, graph, version=options.source, node_ids=ids, dataset=dataset, activate=options.activate)
    result = {
        "model": name,
        "version": version,
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "live": options.activate,
    }
    _print(options, result, f"published {name} {version}: the same weights over {graph.num_nodes:,} nodes")
    return 0


def _only_model(store: Store) -> str:
    names = store.models()
    if len(names) != 1:
        raise DataError(f"say which model with --model: the store has {', '.join(names) or 'none'}")
    return names[0]


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
        return read_user_data(options.data, options.task, shares or DEFAULT_SHARES, seed)
    if options.task is not None:
        raise ConfigError("--task is for your own data; a data set has its own")
    data = datasets.load(options.dataset or "digits", 0 if shares else options.split, seed)
    return data if shares is None else replace(data, split=random_split(data.split != UNUSED, seed, shares))


def _tuned(options: argparse.Namespace, data: LabelledGraph, settings: dict[str, Any]) -> dict[str, Any]:
    """What was given is kept; the rest is searched."""
    from training.tuning import tune

    def tell(number: int, score: float, _settings: dict[str, Any]) -> None:
        if not options.json and not options.quiet:
            sys.stderr.write(f"trial {number} of {options.tune}: validation {score:.4f}\n")

    return tune([data] * TUNING_SEEDS, options.tune, fixed=settings, on_trial=tell)[0]


def _publish(
    options: argparse.Namespace,
    name: str,
    data: LabelledGraph,
    trained: TrainedModel,
    training: TrainingConfig,
    seconds: float,
) -> dict[str, Any]:
    regime = "full graph" if training.batch_nodes is None else "random partition, evaluated on the full graph"
    about = asdict(training) | {
        "regime": regime,
        "recipe": options.recipe,
        "best_epoch": trained.best.number,
        "seconds": seconds,
    }
    about_data: dict[str, Any] = {"name": data.name, "sha256": data.sha256()}
    if data.feature_names:
        about_data["features"] = list(data.feature_names)
    scores = {f"{part}_{metric}": value for part, values in trained.scores.items() for metric, value in values.items()}
    version = publish(
        trained.model,
        data.graph,
        store=Store(options.store),
        name=name,
        node_ids=data.node_ids,
        class_names=data.class_names,
        dataset=about_data,
        training=about,
        scores=scores,
        report=report(f"{name}: training report", data, trained, training),
        states=options.states,
        activate=options.activate,
    )
    return {"model": name, "version": version, "live": options.activate}


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
        state = (
            "live" if result["live"] else f"not live yet: sgf-models --model {result['model']} activate {result['version']}"
        )
        lines.append(f"published {result['model']} {result['version']}, {state}")
    return "\n".join(lines)


def _print(options: argparse.Namespace, result: dict[str, Any], text: str) -> None:
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
    with tqdm(total=training.epochs, desc=data.name, unit="epoch", disable=hidden) as bar:

        def show(epoch: Epoch) -> None:
            bar.set_postfix({"loss": f"{epoch.loss:.3f}", data.metric: f"{epoch.validation:.4f}"}, refresh=False)
            bar.update()

        yield show
