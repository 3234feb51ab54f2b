"""docs/results.json and the page beside it: every outcome of a table, kept as soon as it is there."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from training.paper.published_figures import ALPHA, LABEL_SHARES, LABELS, MEDIUM, Row

RESULTS = Path(__file__).parents[2] / "docs" / "results.json"
NO_ATTENTION = "alpha 0.999: hardly any attention"
HEAD = """# Results

Written by `sgf-train table`. Means and standard deviations of test scores over seeds, in per cent. The best epoch and the
settings of every recipe (`training/recipes/`) are chosen by validation scores only. What that does not cover: test scores of
earlier recipes were known when later searches were begun, and the initialisation of the first GCN weight, changed to that of
all other GCN weights, was compared with test scores of two data sets in view.
"""
MEDIUM_NOTE = """
`cora`, `citeseer` and `pubmed` have the public split; `-random` is the split that the authors' commands draw (20 nodes per
class, their seed 123), on which all seeds run, as theirs do; the others have their stored splits, one per seed. Settings
are shared by all splits of a data set, as in the paper: a test node of one split may have been a validation node of another.
"""
LABELS_NOTE = """
Random splits: a quarter of the nodes validates, a quarter tests, and the given share of all nodes trains. Settings are the
data set's recipe, chosen for its usual split, not for these shares. In brackets: the paper.
"""
ABLATION_NOTE = """
The recipe with another share `alpha` of the graph branch. Half of Cora's nodes train here, as in the paper's table.
"""


@dataclass(frozen=True)
class Outcome:
    dataset: str
    label: str
    scores: list[float]
    """Test scores in per cent, one per seed."""
    validation: list[float]
    seconds: float

    def __str__(self) -> str:
        return spread(self.scores)


def spread(scores: Sequence[float]) -> str:
    return f"{np.mean(scores):.1f} ± {np.std(scores):.1f}"


def share_label(share: float) -> str:
    return f"{share:.0%}"


def alpha_label(alpha: float) -> str:
    return f"alpha {alpha:g}"


def record(path: Path, table: str, outcome: Outcome) -> None:
    pages = json.loads(path.read_text()) if path.exists() else {}
    entry = {"scores": outcome.scores, "validation": outcome.validation, "seconds": outcome.seconds}
    entry |= {"date": datetime.now(UTC).date().isoformat(), "machine": platform.machine()}
    pages.setdefault(table, {}).setdefault(outcome.dataset, {})[outcome.label] = entry
    path.write_text(json.dumps(pages, indent=1) + "\n")
    path.with_suffix(".md").write_text(_page(pages))


def _page(pages: dict[str, Any]) -> str:
    parts = [HEAD]
    if medium := pages.get("medium"):
        rows = [_medium_row(row, medium[row.dataset]["recipe"]) for row in MEDIUM if row.dataset in medium]
        header = ["data set", "ours", "seeds", "validation", "the paper", "authors' code", "reached", "seconds"]
        parts += [_markdown("The paper's medium-sized graphs", header, rows), MEDIUM_NOTE]
    if fewer := pages.get("labels"):
        header = ["data set", *map(share_label, LABEL_SHARES), "seeds"]
        rows = [_labels_row(name, fewer[name]) for name in LABELS if name in fewer]
        parts += [_markdown("Fewer labels: share of the nodes that train", header, rows), LABELS_NOTE]
    if ablation := pages.get("ablation"):
        rows = [row for name in ALPHA if name in ablation for row in _ablation_rows(name, ablation[name])]
        parts += [_markdown("Ablation", ["data set", "variant", "ours", "seeds", "the paper"], rows), ABLATION_NOTE]
    return "".join(parts)


def _medium_row(row: Row, entry: dict[str, Any]) -> list[str]:
    mean = float(np.mean(entry["scores"]))
    bars = [bar for bar in (row.paper, row.authors) if bar is not None]
    reached = ", ".join("yes" if mean >= bar else f"no ({mean - bar:+.1f})" for bar in bars)
    shown = ["" if bar is None else str(bar) for bar in (row.paper, row.authors)]
    ours = [spread(entry["scores"]), str(len(entry["scores"])), spread(entry["validation"])]
    return [row.dataset, *ours, *shown, reached, f"{entry['seconds']:.0f}"]


def _labels_row(name: str, entries: dict[str, Any]) -> list[str]:
    cells, seeds = [], set()
    for share, paper in zip(LABEL_SHARES, LABELS[name], strict=True):
        entry = entries.get(share_label(share))
        cells.append(f"{spread(entry['scores'])} ({paper:.1f})" if entry else "")
        seeds |= {len(entry["scores"])} if entry else set()
    return [name, *cells, ", ".join(map(str, sorted(seeds)))]


def _ablation_rows(name: str, entries: dict[str, Any]) -> list[list[str]]:
    paper = {alpha_label(alpha): f"{figure:.1f}" for alpha, figure in ALPHA[name].items()}
    labels = [label for label in (*paper, NO_ATTENTION) if label in entries]
    scores = {label: entries[label]["scores"] for label in labels}
    return [[name, label, spread(scores[label]), str(len(scores[label])), paper.get(label, "")] for label in labels]


def _markdown(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"\n## {title}\n", f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"
