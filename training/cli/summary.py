"""The end of a training: scores beside the baselines, the report, and the next commands; as text and for `--json`."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from model_store.cli.terminal import default_store
from model_store.format.layout import REPORT
from training.data.labelled import TEST, VALIDATION, LabelledGraph
from training.fit.baselines import Baselines, baselines
from training.fit.loop import TrainedModel


def summarize_run(data: LabelledGraph, trained: TrainedModel, seconds: float) -> dict[str, Any]:
    """The result of a training. The caller adds the choices that were made before it: `features` and `defaults`."""
    return {
        "dataset": data.name,
        "nodes": data.graph.num_nodes,
        "edges": data.graph.num_edges,
        "epochs": len(trained.history),
        "best_epoch": asdict(trained.best),
        "scores": trained.scores,
        "baselines": baselines(data, trained.model.config.feature_transform, trained.scores["train"]),
        "seconds": seconds,
    }


def next_steps(store: Path, name: str, version: int, live: bool, data: LabelledGraph) -> dict[str, Any]:
    """The path of the report, and the commands that serve the version and ask for one of its nodes."""
    folder = [] if store == default_store() else ["--store", str(store)]
    commands = [] if live else [["sgf-models", *folder, "--model", name, "activate", str(version)]]
    node = int((data.nodes(TEST) if len(data.nodes(TEST)) else data.nodes(VALIDATION))[0])
    body = json.dumps({"nodes": data.node_ids.names([node]) if data.node_ids else [node]})
    commands += [["sgf-serve", *folder, "--model", name], ["curl", "localhost:8000/predict", "--json", body]]
    return {"report": str(store / name / str(version) / REPORT), "next": [shlex.join(command) for command in commands]}


def describe_run(data: LabelledGraph, result: dict[str, Any]) -> str:
    """The text of a result of `summarize_run` with `features` and `defaults`, and with what publishing has added, if any."""
    part = "test" if "test" in result["scores"] else "validation"
    best = result["best_epoch"]["number"]
    epoch = f"best epoch {best} of {result['epochs']} by validation {data.metric}"
    epoch += "; it is the last: more --epochs may be better" if best == result["epochs"] > 1 else ""
    lines = [
        f"{data.name}: {data.graph.num_nodes:,} nodes, {data.graph.num_edges:,} edges, trained in {result['seconds']:.1f} s",
        f"features: {result['features']}",
        *([f"defaults {result['defaults']}"] if result["defaults"] else []),
        f"{part} {_scores(result['scores'][part])} ({epoch})",
        *_baseline_lines(result["baselines"]),
    ]
    if "version" in result:
        state = "live" if result["live"] else "not live yet"
        lines.append(f"published {result['model']} {result['version']}, {data.graph.num_nodes:,} nodes, {state}")
    if "verdict" in result:
        lines.append(result["verdict"]["reason"])
    if "report" in result:
        lines += [f"report: {result['report']}", "next:", *(f"  {command}" for command in result["next"])]
    return "\n".join(lines)


def _scores(scores: dict[str, float]) -> str:
    return ", ".join(f"{name} {score:.4f}" for name, score in scores.items())


def _baseline_lines(rows: Baselines) -> list[str]:
    return [f"  {name}: {scores.get('skipped') or _scores(scores)}" for name, scores in rows.items()]
