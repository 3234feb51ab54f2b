"""What `sgf-train` does: train, refresh, table."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm

from model_store import DataError, Store
from training import datasets
from training.demo import prove
from training.labelled import LabelledGraph
from training.loop import Epoch, Stopped, TrainedModel, TrainingConfig, train
from training.publishing import publish, refresh
from training.report import report
from training.settings import configurations, read_recipe, training_config
from training.user_data import read_user_data

STOPPED = 130


def train_model(options: argparse.Namespace) -> int:
    settings = _settings(options)
    training_config(settings)  # a bad setting is told before any data is read
    data = _data(options)
    if options.tune:
        settings |= _tuned(options, settings)
    config, training = configurations(data, settings)
    name = options.model or data.name.lower().replace("_", "-")
    checkpoint = Path(options.store).parent / "training" / f"{name}.safetensors"
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
    """The same weights over new data. Labels are not needed, but are scored where they are there."""
    from model_store.graph_file import read_graph_file

    store, path = Store(options.store), options.data
    if path.is_dir():
        data = read_user_data(path)
        graph, ids = data.graph, data.node_ids
    else:
        file = read_graph_file(path)
        graph, ids = file.graph, file.node_ids
    name = options.model or _only_model(store)
    version = refresh(
        store, name, graph, version=options.source, node_ids=ids, dataset={"name": path.name}, activate=options.activate
    )
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


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    flags = {name: getattr(options, name) for name in options.settings if getattr(options, name) is not None}
    recipe = read_recipe(options.recipe) if options.recipe else None
    if recipe and not options.dataset and not options.data:
        options.dataset = recipe.dataset
    return (recipe.settings if recipe else {}) | flags


def _data(options: argparse.Namespace) -> LabelledGraph:
    seed = options.seed or 0
    if options.data:
        return read_user_data(options.data, options.task, options.shares, seed)
    return datasets.load(options.dataset or "digits", options.split, seed)


def _tuned(options: argparse.Namespace, settings: dict[str, Any]) -> dict[str, Any]:
    """What was given is kept; the rest is searched."""
    from training.tuning import tune

    def tell(number: int, score: float, _settings: dict[str, Any]) -> None:
        if not options.json and not options.quiet:
            sys.stderr.write(f"trial {number} of {options.tune}: validation {score:.4f}\n")

    def load(number: int) -> LabelledGraph:
        changed = {"split": options.split + number, "seed": (options.seed or 0) + number}
        return _data(argparse.Namespace(**vars(options) | changed))

    return tune(load, options.tune, fixed=settings, on_trial=tell)[0]


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
    scores = {f"{part}_{metric}": value for part, values in trained.scores.items() for metric, value in values.items()}
    version = publish(
        trained.model,
        data.graph,
        store=Store(options.store),
        name=name,
        node_ids=data.node_ids,
        class_names=data.class_names,
        dataset={"name": data.name, "sha256": data.sha256()},
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
    tested = trained.scores.get("test") or trained.scores["validation"]
    scores = ", ".join(f"{name} {value:.4f}" for name, value in tested.items())
    lines = [
        f"{data.name}: {data.graph.num_nodes:,} nodes, {data.graph.num_edges:,} edges, trained in {result['seconds']:.1f} s",
        f"test {scores} (best epoch {trained.best.number} by validation {data.metric})",
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
