"""docs/results.json and the page beside it. Every table entry is stored as soon as its runs are done."""

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

Written by `sgf-train table`. Means and standard deviations of test scores over seeds, in per cent. The best epoch and
the settings of every recipe (`training/recipes/`) are chosen by validation scores only. What that does not cover: test
scores of earlier recipes were known when later searches were begun, and the initialisation of the first GCN weight,
changed to that of all other GCN weights, was compared with test scores of two data sets in view.
"""
MEDIUM_NOTE = """
`cora`, `citeseer` and `pubmed` have the public split; `-random` is the split that the authors' commands draw (20 nodes
per class, their seed 123), on which all seeds run, as theirs do; the others have their stored splits, one per seed.
Settings are shared by all splits of a data set, as in the paper: a test node of one split may have been a validation
node of another.
"""
LABELS_NOTE = """
Random splits: a quarter of the nodes validates, a quarter tests, and the given share of all nodes trains. Settings are
the data set's recipe, chosen for its usual split, not for these shares. In brackets: the paper.
"""
ABLATION_NOTE = """
The recipe with another share `alpha` of the graph branch. Half of Cora's nodes train here, as in the paper's table.
"""


@dataclass(frozen=True)
class TableEntry:
    dataset: str
    label: str
    """The variant: a share of labels, an alpha, or the recipe."""
    scores: list[float]
    """Test scores in per cent, one per seed."""
    validation: list[float]
    seconds: float

    def __str__(self) -> str:
        return mean_and_deviation(self.scores)


def mean_and_deviation(scores: Sequence[float]) -> str:
    return f"{np.mean(scores):.1f} ± {np.std(scores):.1f}"


def share_label(share: float) -> str:
    return f"{share:.0%}"


def alpha_label(alpha: float) -> str:
    return f"alpha {alpha:g}"


def record(path: Path, table: str, entry: TableEntry) -> None:
    """Adds an entry to the JSON file and writes the page again."""
    tables = json.loads(path.read_text()) if path.exists() else {}
    content = {"scores": entry.scores, "validation": entry.validation, "seconds": entry.seconds}
    content |= {"date": datetime.now(UTC).date().isoformat(), "machine": platform.machine()}
    tables.setdefault(table, {}).setdefault(entry.dataset, {})[entry.label] = content
    path.write_text(json.dumps(tables, indent=1) + "\n")
    path.with_suffix(".md").write_text(_page(tables))


def _page(tables: dict[str, Any]) -> str:
    parts = [HEAD]
    if medium := tables.get("medium"):
        rows = [_medium_row(row, medium[row.dataset]["recipe"]) for row in MEDIUM if row.dataset in medium]
        header = ["data set", "ours", "seeds", "validation", "the paper", "authors' code", "reached", "seconds"]
        parts += [_markdown("The paper's medium-sized graphs", header, rows), MEDIUM_NOTE]
    if fewer := tables.get("labels"):
        header = ["data set", *map(share_label, LABEL_SHARES), "seeds"]
        rows = [_labels_row(name, fewer[name]) for name in LABELS if name in fewer]
        parts += [_markdown("Fewer labels: share of the nodes that train", header, rows), LABELS_NOTE]
    if ablation := tables.get("ablation"):
        rows = [row for name in ALPHA if name in ablation for row in _ablation_rows(name, ablation[name])]
        parts += [_markdown("Ablation", ["data set", "variant", "ours", "seeds", "the paper"], rows), ABLATION_NOTE]
    return "".join(parts)


def _medium_row(row: Row, entry: dict[str, Any]) -> list[str]:
    mean = float(np.mean(entry["scores"]))
    goals = [goal for goal in (row.paper, row.authors) if goal is not None]
    reached = ", ".join("yes" if mean >= goal else f"no ({mean - goal:+.1f})" for goal in goals)
    published = ["" if goal is None else str(goal) for goal in (row.paper, row.authors)]
    ours = [mean_and_deviation(entry["scores"]), str(len(entry["scores"])), mean_and_deviation(entry["validation"])]
    return [row.dataset, *ours, *published, reached, f"{entry['seconds']:.0f}"]


def _labels_row(name: str, entries: dict[str, Any]) -> list[str]:
    cells, seeds = [], set()
    for share, paper in zip(LABEL_SHARES, LABELS[name], strict=True):
        entry = entries.get(share_label(share))
        cells.append(f"{mean_and_deviation(entry['scores'])} ({paper:.1f})" if entry else "")
        seeds |= {len(entry["scores"])} if entry else set()
    return [name, *cells, ", ".join(map(str, sorted(seeds)))]


def _ablation_rows(name: str, entries: dict[str, Any]) -> list[list[str]]:
    paper = {alpha_label(alpha): f"{figure:.1f}" for alpha, figure in ALPHA[name].items()}
    labels = [label for label in (*paper, NO_ATTENTION) if label in entries]
    scores = {label: entries[label]["scores"] for label in labels}
    return [
        [name, label, mean_and_deviation(scores[label]), str(len(scores[label])), paper.get(label, "")] for label in labels
    ]


def _markdown(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"\n## {title}\n", f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"
