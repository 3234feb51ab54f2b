"""`sgf-train`: train on data, score, publish, and activate if the options say so."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from model_store import Store
from model_store.cli.terminal import INTERRUPTED, default_log
from model_store.format.layout import checked_model
from model_store.publish.shared_forward import assist
from model_store.run_contract import JOB_KEY, DataEvent, FinishedEvent, StoppedEvent
from sgformer import ConfigError, ModelConfig
from sgformer.full_graph.collectives import world_size
from training.cli.demo import check_new_node
from training.cli.events import EventWriter
from training.cli.facts_text import print_facts
from training.cli.launching import report
from training.cli.options import TrainOptions
from training.cli.summary import describe_run, next_steps, summarize_run
from training.cli.terminal import (
    live_settings,
    model_name,
    open_training_data,
    print_result,
    progress,
    read_settings,
    stop_signals,
)
from training.cli.tune_command import search_settings
from training.data.labelled import LabelledGraph
from training.fit.loop import Stopped, TrainedModel, train
from training.fit.processes import process_group, rank, require_shared
from training.fit.settings import TrainingConfig, configurations, describe_defaults, feature_scaling, training_config
from training.fit.warm_start import StartingPoint
from training.release.delivery import deliver
from training.release.gate import judge
from training.release.publishing import publish
from training.report.page import render_report


def train_model(options: TrainOptions, events: EventWriter) -> int:
    with process_group(options.device) as device:
        return _train_model(replace(options, device=device), events)


def _train_model(options: TrainOptions, events: EventWriter) -> int:
    settings, dataset = read_settings(options)
    training_config(settings)  # a wrong setting or model name fails before any data is read
    store = Store(options.store, redis=default_log())
    if not options.no_publish:
        require_shared(options.store)
    name = checked_model(model_name(options, store, dataset))
    with open_training_data(options, store, name, dataset) as data:
        if options.activate != "never" and not options.discard_changes and name in store.models():
            store.model(name).require_same_graph(data.live["graph"] if data.live else data.sha256())  # before it trains
        if data.live is not None and not options.tune:
            settings = live_settings(store, name) | settings
        return _train(options, events, store, name, data, settings)


def _train(
    options: TrainOptions, events: EventWriter, store: Store, name: str, data: LabelledGraph, settings: dict[str, Any]
) -> int:
    configurations(data, settings)  # a wrong setting of the model fails before anything is printed
    if rank() == 0:
        print_facts(options, data, feature_scaling(data, settings))
    if options.tune and world_size() > 1:
        raise ConfigError("--tune searches in one process: run sgf-train tune first, then train with its recipe")
    if options.tune:
        settings |= search_settings(options, data, options.tune, settings).settings
    choices = {"features": str(feature_scaling(data, settings)), "defaults": describe_defaults(data, settings)}
    config, training = configurations(data, settings)
    starting_point = StartingPoint.of(store, name, config, options.warm_start)
    settings = config.to_dict() | asdict(training)
    events.write(DataEvent(**data.description(), settings=settings, **starting_point.to_dict()))
    checkpoint = _checkpoint_path(options, name)
    start = time.perf_counter()
    trained = _fit(options, events, data, config, training, starting_point, checkpoint)
    if trained is None:
        return INTERRUPTED
    if rank() > 0:
        if not options.no_publish:
            assist(config, trained.model.weights(), data.graph, options.device)
        return 0
    seconds = time.perf_counter() - start
    result = summarize_run(data, trained, seconds) | choices
    if not options.no_publish:
        about = {"seconds": seconds, "features": choices["features"], **starting_point.to_dict()}
        result |= _publish(options, events, store, name, data, trained, training, about)
        result |= next_steps(options.store, name, result["version"], result["live"], data)
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)  # after publishing: a run that is killed while it publishes can be resumed
    text = describe_run(data, result)
    if data.name == "digits":
        result["new_node"], description = check_new_node(trained.model, training.seed)
        text += f"\n\n{description}"
    events.write(FinishedEvent(result=result))
    print_result(options, result, text)
    return 0


def _fit(
    options: TrainOptions,
    events: EventWriter,
    data: LabelledGraph,
    config: ModelConfig,
    training: TrainingConfig,
    starting_point: StartingPoint,
    checkpoint: Path | None,
) -> TrainedModel | None:
    """Trains, and returns None if a signal has stopped the training."""
    try:
        with stop_signals() as received, progress(options, events, data, training) as show:
            return train(
                config,
                data,
                training,
                show,
                checkpoint=checkpoint,
                checkpoint_seconds=options.checkpoint_every,
                resume=options.resume,
                stop=lambda: bool(received),
                start=starting_point.tensors,
                device=options.device,
            )
    except Stopped:
        events.write(StoppedEvent())
        more = f"; the same command with --resume continues from {checkpoint}" if checkpoint else ""
        report(f"stopped{more}")
        return None


def _checkpoint_path(options: TrainOptions, name: str) -> Path | None:
    """Where the run writes its checkpoint. The checkpoint of a stopped run is renamed unless this run resumes it."""
    if options.no_checkpoint:
        return None
    path = options.store.parent / "training" / f"{name}.safetensors"
    if path.exists() and not options.resume and rank() == 0:
        path.replace(path.with_suffix(".earlier.safetensors"))
    return path


def _publish(
    options: TrainOptions,
    events: EventWriter,
    store: Store,
    name: str,
    data: LabelledGraph,
    trained: TrainedModel,
    training: TrainingConfig,
    about: dict[str, Any],
) -> dict[str, Any]:
    """Publishes the model, compares it with the live version, and returns the result of both."""
    regime = "full graph" if training.batch_nodes is None else "random partition, evaluated on the full graph"
    about = (
        asdict(training)
        | about
        | {
            "regime": regime,
            "recipe": options.recipe,
            "best_epoch": trained.best.number,
            "split": data.drawn,
            "metric": data.metric,
            JOB_KEY: options.job,
            "activate": options.activate,
        }
    )
    events.check_fence()
    version = publish(
        trained.model,
        data.graph,
        store=store,
        name=name,
        node_ids=data.node_ids,
        class_names=data.class_names,
        dataset=data.description(),
        training=about,
        scores={f"{part}_{metric}": score for part, scores in trained.scores.items() for metric, score in scores.items()},
        report=lambda summary: render_report(f"{name}: training report", data, trained, training, summary),
        labels=data.labels,
        split=data.split,
        features=data.schema,
        reading=data.reading,
        live=data.live,
        raw_data=not options.no_raw_data,
        states=options.states,
        device=options.device,
    )
    versions = store.model(name)
    with versions.open(version, verify="sizes") as new:  # this process has just written and hashed it
        delivered = deliver(
            versions,
            version,
            options.activate,
            lambda live: judge(new, live, data, options.device),
            events,
            options.keep,
            options.discard_changes,
        )
    return {"model": name, "version": version} | delivered
