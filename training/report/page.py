"""`report.html`: the results of a training run on one page, without scripts or other files."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import metrics

from sgformer import SGFormer, Summary, probabilities
from sgformer.explain.branches import branch_shares
from training.data.labelled import PARTS, TEST, LabelledGraph
from training.fit.loop import TrainedModel
from training.fit.settings import TrainingConfig
from training.report import charts

STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:960px;margin:2rem auto;padding:0 1rem;color:#1f2937}
h1{margin-bottom:0}h2{margin-top:2rem}.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(360px,1fr));gap:1rem}
svg{width:100%;font-size:10px;fill:#374151}svg .title{font-size:12px;font-weight:600}table{border-collapse:collapse}
td,th{padding:.2rem .6rem;text-align:right;border-bottom:1px solid #e5e7eb}td:first-child,th:first-child{text-align:left}
.scroll{overflow-x:auto}.note{color:#6b7280}"""
BINS = 10
MAX_CLASSES = 60
"""The largest confusion matrix that is still readable."""
SAMPLED_NODES = 1_000_000
BRANCH_NAMES = ("own value", "attention", "graph", "bias")
"""Short names of the fields of `Branches`."""
CHUNK_NODES = 65_536


@dataclass(frozen=True)
class Predictions:
    """Predictions for the test nodes. Row i of every array is about node `nodes[i]`.

    `confidence` is the probability of the predicted class.
    """

    nodes: NDArray[np.int64]
    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]
    confidence: NDArray[np.float32]
    is_correct: NDArray[np.bool_]

    @classmethod
    def of(cls, data: LabelledGraph, trained: TrainedModel) -> Predictions:
        """Works in chunks: a copy of all logits and probabilities would be as large as the model's states."""
        nodes = data.nodes(TEST)
        predicted, confidence = np.empty(len(nodes), dtype=np.int64), np.empty(len(nodes), dtype=np.float32)
        for start in range(0, len(nodes), CHUNK_NODES):
            chunk = slice(start, start + CHUNK_NODES)
            logits = trained.logits[nodes[chunk]]
            predicted[chunk] = logits.argmax(axis=1)
            confidence[chunk] = probabilities(logits, "multiclass").max(axis=1)
        return cls(nodes, data.labels[nodes], predicted, confidence, predicted == data.labels[nodes])


def render_report(title: str, data: LabelledGraph, trained: TrainedModel, training: TrainingConfig, summary: Summary) -> str:
    """Returns the report as an HTML page. `summary`: the full-graph forward of the trained model over the data's graph."""
    graph = data.graph
    sizes = f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {graph.num_features:,} features, {data.task}"
    images, tables = [*_training_curves(data, trained), _branch_shares(trained.model, summary)], []
    if data.task == "multiclass" and len(data.nodes(TEST)):
        test = Predictions.of(data, trained)
        images += [_calibration(test), _accuracy_by_degree(test, graph.adjacency.degrees(test.nodes))]
        tables = [_class_scores(data, test), _confusion_matrix(data, test)]
    sections = [
        _scores(data, trained),
        f'<div class="charts">{"".join(images)}</div>',
        *tables,
        _settings(data, trained.model, training),
    ]
    body = f"<h1>{escape(title)}</h1><p class='note'>{sizes}</p>{''.join(sections)}"
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


def _training_curves(data: LabelledGraph, trained: TrainedModel) -> list[str]:
    """Returns no chart if there is only one epoch."""
    epochs = [epoch.number for epoch in trained.history]
    curves: list[charts.Series] = [
        ("loss", [epoch.loss for epoch in trained.history]),
        (f"validation {data.metric}", [epoch.validation for epoch in trained.history]),
    ]
    return [charts.lines("Training", epochs, curves, "epoch")] if len(epochs) > 1 else []


def _branch_shares(model: SGFormer, summary: Summary) -> str:
    """Draws the share of each part of the logits (docs/explain.md), over all nodes of a graph that is not too large."""
    count = summary.states.num_nodes
    nodes = np.unique(np.linspace(0, count - 1, min(count, SAMPLED_NODES)).astype(np.int64))
    shares = branch_shares(model.inference(), summary.states, summary.sums, nodes)
    scope = "all nodes" if len(nodes) == count else f"{len(nodes):,} nodes"
    notes = [f"{share:.1%}" for share in shares.values()]
    return charts.bars(f"Share of each branch in the decisions, {scope}", BRANCH_NAMES, [*shares.values()], notes, "branch")


def _calibration(test: Predictions) -> str:
    bins = np.minimum((test.confidence * BINS).astype(int), BINS - 1)
    counts = np.bincount(bins, minlength=BINS)
    accuracies = np.bincount(bins, weights=test.is_correct, minlength=BINS) / np.maximum(counts, 1)
    names = [f"{(number + 0.5) / BINS:.2f}" for number in range(BINS)]
    title = "Calibration: accuracy by predicted probability (test)"
    chart = charts.bars(title, names, accuracies.tolist(), [str(count) for count in counts], "predicted probability")
    return charts.add_diagonal(chart)


def _accuracy_by_degree(test: Predictions, degrees: NDArray[np.int64]) -> str:
    """Degrees in powers of two: 0, 1, 2-3, 4-7, ..."""
    bins = np.where(degrees > 0, np.floor(np.log2(np.maximum(degrees, 1))).astype(int) + 1, 0)
    counts = np.bincount(bins)
    accuracies = np.bincount(bins, weights=test.is_correct) / np.maximum(counts, 1)
    used = np.flatnonzero(counts)
    names = ["0" if number == 0 else f"{2 ** (number - 1)}+" for number in used.tolist()]
    notes = [str(count) for count in counts[used]]
    title = "Accuracy by number of neighbours (test)"
    return charts.bars(title, names, accuracies[used].tolist(), notes, "neighbours")


def _class_scores(data: LabelledGraph, test: Predictions) -> str:
    names = _class_names(data)
    labels = np.arange(len(names))
    scores = metrics.precision_recall_fscore_support(test.labels, test.predicted, labels=labels, zero_division=0.0)
    rows = [
        [name, *(f"{score[label]:.3f}" for score in scores[:3]), f"{scores[3][label]:,}"] for label, name in enumerate(names)
    ]
    return f"<h2>Classes (test)</h2>{_table(['class', 'precision', 'recall', 'F1', 'nodes'], rows)}"


def _confusion_matrix(data: LabelledGraph, test: Predictions) -> str:
    names = [escape(name) for name in _class_names(data)]
    if len(names) > MAX_CLASSES:
        return ""
    matrix = metrics.confusion_matrix(test.labels, test.predicted, labels=np.arange(len(names)))
    opacities = 0.6 * matrix / matrix.max(axis=1, keepdims=True).clip(min=1)
    rows = []
    for name, counts, shades in zip(names, matrix, opacities, strict=True):
        cells = [
            f'<td style="background:rgba(37,99,235,{shade:.2f})">{count}</td>'
            for count, shade in zip(counts, shades, strict=True)
        ]
        rows.append(f"<tr><th>{name}</th>{''.join(cells)}</tr>")
    header = "".join(f"<th>{name}</th>" for name in names)
    table = f"<table><tr><th>true \\ predicted</th>{header}</tr>{''.join(rows)}</table>"
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


def _class_names(data: LabelledGraph) -> list[str]:
    return list(data.class_names or map(str, range(data.num_outputs)))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["".join(f"<th>{escape(cell)}</th>" for cell in header)]
    lines += ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    return f'<div class="scroll"><table>{"".join(f"<tr>{line}</tr>" for line in lines)}</table></div>'
