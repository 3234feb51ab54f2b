"""`sgf-train`: train on data, score, publish, and activate if the options say so."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from model_store import Store
from model_store.cli.terminal import describe_publication
from model_store.format.layout import checked_model
from model_store.run_contract import JOB_KEY, DataEvent, FinishedEvent, StoppedEvent
from training.cli.demo import check_new_node
from training.cli.events import EventWriter
from training.cli.options import TrainOptions
from training.cli.terminal import STOPPED, print_result, progress, read_data, read_settings, stop_signals
from training.cli.tune_command import search_settings
from training.data.labelled import LabelledGraph
from training.fit.loop import Stopped, TrainedModel, TrainingConfig, train
from training.fit.settings import configurations, training_config
from training.fit.warm_start import Lineage
from training.release.delivery import deliver
from training.release.gate import judge
from training.release.publishing import publish
from training.report.page import render_report


def train_model(options: TrainOptions, events: EventWriter) -> int:
    settings, dataset = read_settings(options)
    training_config(settings)  # a wrong setting or model name fails before any data is read
    name = checked_model(options.model or _default_name(options.data.resolve().stem if options.data else dataset))
    data = read_data(options, dataset)
    if options.tune:
        settings |= search_settings(options, [data], options.tune, settings, None, ctrl_c_stops=True).settings
    config, training = configurations(data, settings)
    lineage = Lineage.of(Store(options.store), name, config, options.warm_start)
    settings = config.to_dict() | asdict(training)
    events.write(DataEvent(**data.description(), settings=settings, **lineage.to_dict()))
    checkpoint = _checkpoint_path(options, name)
    start = time.perf_counter()
    try:
        with stop_signals() as received, progress(options, events, data, training) as show:
            trained = train(
                config,
                data,
                training,
                show,
                checkpoint=checkpoint,
                checkpoint_seconds=options.checkpoint_every,
                resume=options.resume,
                stop=lambda: bool(received),
                start=lineage.start,
            )
    except Stopped:
        events.write(StoppedEvent())
        sys.stderr.write(
            f"stopped; the same command with --resume continues from {checkpoint}\n" if checkpoint else "stopped\n"
        )
        return STOPPED
    seconds = time.perf_counter() - start
    result = _result(data, trained, seconds)
    if not options.no_publish:
        about = {"seconds": seconds, **lineage.to_dict()}
        result |= _publish(options, events, name, data, trained, training, about)
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)  # after publishing: a run that is killed while it publishes can be resumed
    text = _result_text(data, trained, result)
    if data.name == "digits":
        result["new_node"], description = check_new_node(trained.model, training.seed)
        text += f"\n\n{description}"
    events.write(FinishedEvent(result=result))
    print_result(options, result, text)
    return 0


def _default_name(source: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", source.lower()).strip("-")[:64] or "model"


def _checkpoint_path(options: TrainOptions, name: str) -> Path | None:
    """Where the run writes its checkpoint. The checkpoint of a stopped run is renamed unless this run resumes it."""
    if options.no_checkpoint:
        return None
    path = options.store.parent / "training" / f"{name}.safetensors"
    if path.exists() and not options.resume:
        path.replace(path.with_suffix(".earlier.safetensors"))
    return path


def _publish(
    options: TrainOptions,
    events: EventWriter,
    name: str,
    data: LabelledGraph,
    trained: TrainedModel,
    training: TrainingConfig,
    about: dict[str, Any],
) -> dict[str, Any]:
    """Publishes the model, compares it with the live version, and returns the result of both."""
    store = Store(options.store)
    regime = "full graph" if training.batch_nodes is None else "random partition, evaluated on the full graph"
    about = (
        asdict(training)
        | about
        | {
            "regime": regime,
            "recipe": options.recipe,
            "best_epoch": trained.best.number,
            "split": data.drawn,
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
        states=options.states,
    )
    versions = store.model(name)
    with versions.open(version, verify="sizes") as new:  # this process has just written and hashed it
        delivered = deliver(versions, version, options.activate, lambda live: judge(new, live, data), events, options.keep)
    return {"model": name, "version": version} | delivered


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


def _result_text(data: LabelledGraph, trained: TrainedModel, result: dict[str, Any]) -> str:
    part = "test" if "test" in trained.scores else "validation"
    scores = ", ".join(f"{name} {score:.4f}" for name, score in trained.scores[part].items())
    lines = [
        f"{data.name}: {data.graph.num_nodes:,} nodes, {data.graph.num_edges:,} edges, trained in {result['seconds']:.1f} s",
        f"{part} {scores} (best epoch {trained.best.number} by validation {data.metric})",
    ]
    if "version" in result:
        lines.append(describe_publication(result["model"], result["version"], data.graph.num_nodes, result["live"]))
    if "verdict" in result:
        lines.append(result["verdict"]["reason"])
    return "\n".join(lines)
