"""`report.html`: what a training run did, on one page that needs nothing else."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import metrics

from sgformer import SGFormer, probabilities, summarize
from training.data.labelled import PARTS, TEST, LabelledGraph
from training.fit.loop import TrainedModel, TrainingConfig
from training.report import charts

STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:960px;margin:2rem auto;padding:0 1rem;color:#1f2937}
h1{margin-bottom:0}h2{margin-top:2rem}.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(360px,1fr));gap:1rem}
svg{width:100%;font-size:10px;fill:#374151}svg .title{font-size:12px;font-weight:600}table{border-collapse:collapse}
td,th{padding:.2rem .6rem;text-align:right;border-bottom:1px solid #e5e7eb}td:first-child,th:first-child{text-align:left}
.scroll{overflow-x:auto}.note{color:#6b7280}"""
BINS = 10
MAX_CLASSES = 60
"""Of a confusion matrix that a person could still read."""


def report(title: str, data: LabelledGraph, trained: TrainedModel, training: TrainingConfig) -> str:
    graph = data.graph
    head = f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {graph.num_features:,} features, {data.task}"
    sections = [_scores(data, trained), f'<div class="charts">{"".join(_charts(data, trained))}</div>']
    if data.task == "multiclass":
        sections += [_per_class(data, trained), _confusion(data, trained)]
    sections += [_settings(data, trained.model, training)]
    body = f"<h1>{escape(title)}</h1><p class='note'>{head}</p>{''.join(sections)}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{STYLE}</style></head>'
        f"<body>{body}</body></html>\n"
    )


def _scores(data: LabelledGraph, trained: TrainedModel) -> str:
    names = list(next(iter(trained.scores.values())))
    rows = [
        [part, f"{len(data.nodes(PARTS[part])):,}", *(f"{scores[name]:.4f}" for name in names)]
        for part, scores in trained.scores.items()
    ]
    note = f"Best of {len(trained.history)} epochs by validation {data.metric}: epoch {trained.best.number}."
    return f"<h2>Scores</h2><p>{note}</p>{_table(['', 'nodes', *names], rows)}"


def _charts(data: LabelledGraph, trained: TrainedModel) -> list[str]:
    epochs = [epoch.number for epoch in trained.history]
    curves: list[charts.Series] = [
        ("loss", [epoch.loss for epoch in trained.history]),
        (f"validation {data.metric}", [epoch.validation for epoch in trained.history]),
    ]
    found = [charts.lines("Training", epochs, curves, "epoch")] if len(epochs) > 1 else []
    found.append(_branches(trained.model, data))
    nodes = data.nodes(TEST)
    if data.task == "multiclass" and len(nodes):
        right = trained.logits[nodes].argmax(axis=1) == data.labels[nodes]
        found += [_calibration(trained.logits[nodes], right), _by_degree(data.graph.adjacency.degrees(nodes), right)]
    return found


def _calibration(logits: NDArray[Any], right: NDArray[np.bool_]) -> str:
    sure = probabilities(logits, "multiclass").max(axis=1)
    places = np.minimum((sure * BINS).astype(int), BINS - 1)
    counts = np.bincount(places, minlength=BINS)
    shares = np.bincount(places, weights=right, minlength=BINS) / np.maximum(counts, 1)
    names = [f"{(place + 0.5) / BINS:.2f}" for place in range(BINS)]
    chart = charts.bars(
        "Calibration: share right, by how sure (test)", names, shares.tolist(), [str(n) for n in counts], "sure"
    )
    return charts.diagonal(chart)


def _by_degree(degrees: NDArray[np.int64], right: NDArray[np.bool_]) -> str:
    """In powers of two: 0, 1, 2-3, 4-7, ..."""
    places = np.where(degrees > 0, np.floor(np.log2(np.maximum(degrees, 1))).astype(int) + 1, 0)
    kept = np.unique(places)
    names = ["0" if place == 0 else f"{2 ** (place - 1)}+" for place in kept]
    shares = [float(right[places == place].mean()) for place in kept]
    counts = [str(int((places == place).sum())) for place in kept]
    return charts.bars("Accuracy by number of neighbours (test)", names, shares, counts, "neighbours")


def _branches(model: SGFormer, data: LabelledGraph) -> str:
    """How much of an embedding comes from each branch: mean lengths of (1 - alpha) AN and alpha GN."""
    config = model.config
    summary = summarize(config, model.weights(), data.graph)
    nodes = np.random.default_rng(0).permutation(data.graph.num_nodes)[:5000]
    graph_part = np.asarray(summary.states.layers[-1][nodes])
    embeddings = model.inference().known(summary.states, summary.sums, nodes).embeddings
    if config.combine == "cat":
        attention = embeddings[:, : config.hidden]
    else:
        graph_part = config.alpha * graph_part
        attention = embeddings - graph_part
    lengths = [float(np.linalg.norm(part, axis=1).mean()) for part in (attention, graph_part)]
    shares = [length / max(sum(lengths), 1e-12) for length in lengths]
    notes = [f"{share:.0%}" for share in shares]
    return charts.bars("Share of the embedding's length", ["attention", "graph"], shares, notes, "branch")


def _per_class(data: LabelledGraph, trained: TrainedModel) -> str:
    nodes = data.nodes(TEST)
    if not len(nodes):
        return ""
    truth, answers = data.labels[nodes], trained.logits[nodes].argmax(axis=1)
    labels = np.arange(data.num_outputs)
    parts = metrics.precision_recall_fscore_support(truth, answers, labels=labels, zero_division=0.0)
    rows = [
        [_class_name(data, label), *(f"{part[label]:.3f}" for part in parts[:3]), f"{parts[3][label]:,}"]
        for label in labels.tolist()
    ]
    return f"<h2>Classes (test)</h2>{_table(['class', 'precision', 'recall', 'F1', 'nodes'], rows)}"


def _confusion(data: LabelledGraph, trained: TrainedModel) -> str:
    nodes = data.nodes(TEST)
    if not len(nodes) or data.num_outputs > MAX_CLASSES:
        return ""
    labels = np.arange(data.num_outputs)
    matrix = metrics.confusion_matrix(data.labels[nodes], trained.logits[nodes].argmax(axis=1), labels=labels)
    largest = matrix.max(axis=1, keepdims=True).clip(min=1)
    rows = []
    for label in labels.tolist():
        shades = [
            f'<td style="background:rgba(37,99,235,{share:.2f})">{n}</td>'
            for n, share in zip(matrix[label], (matrix / largest)[label] * 0.6, strict=True)
        ]
        rows.append(f"<tr><th>{escape(_class_name(data, label))}</th>{''.join(shades)}</tr>")
    header = "".join(f"<th>{escape(_class_name(data, label))}</th>" for label in labels.tolist())
    table = f"<table><tr><th>true \\ said</th>{header}</tr>{''.join(rows)}</table>"
    return f'<h2>Confusion matrix (test)</h2><div class="scroll">{table}</div>'


def _settings(data: LabelledGraph, model: SGFormer, training: TrainingConfig) -> str:
    environment = {"python": platform.python_version(), "torch": torch.__version__, "threads": torch.get_num_threads()}
    sections = {
        "Data": {"name": data.name, "sha256": data.sha256()},
        "Training": asdict(training),
        "Model": model.config.to_dict(),
        "Environment": environment | {"machine": platform.machine()},
    }
    tables = [
        f"<h3>{name}</h3>{_table(['', ''], [[k, str(v)] for k, v in values.items()])}" for name, values in sections.items()
    ]
    return f"<h2>Settings</h2>{''.join(tables)}"


def _class_name(data: LabelledGraph, label: int) -> str:
    return data.class_names[label] if data.class_names else str(label)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(f"<tr>{line}</tr>" for line in lines)}</table></div>'
