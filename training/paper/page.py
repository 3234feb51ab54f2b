"""docs/results.md, the page of all tables, with its pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from training.paper.contenders import GCN, LINEAR, MAJORITY, MODELS, OURS, contenders, ours, recipe_for
from training.paper.labels import DEPTHS, FUNCTIONS, alpha_label, depth_label, share_label
from training.paper.pictures import pictures_of
from training.paper.published_figures import ALPHA, FRESH, FRESH_SPLITS, LABEL_SHARES, LABELS, MEDIUM, VARIANTS, Row
from training.paper.results import UNFINISHED, ResultsFile, Table, mean_and_deviation
from training.paper.texts import (
    ABLATION_NOTE,
    ATTENTION_NOTE,
    DEFAULTS_NOTE,
    DEPTH_NOTE,
    FRESH_NOTE,
    HEAD,
    LABELS_NOTE,
    MEDIUM_NOTE,
)
from training.paper.unseen_graphs import DEFAULTS, SEARCHED, TOLERANCE, TRIALS, UNSEEN

Entries = dict[str, dict[str, Any]]
"""The cells of a data set, by label."""


def page_of(tables: dict[str, Table], stem: str, pictures: set[str]) -> str:
    """The page. `pictures`: the names of the pictures `STEM_NAME.svg` beside it."""
    parts = [HEAD]
    for name, section in SECTIONS.items():
        if table := tables.get(name):
            text = section(table)
            picture = f"\n![{name}]({stem}_{name}.svg)\n" if name in pictures else ""
            parts.append(text.replace("PICTURE\n", picture))
    return "".join(parts)


def write_page(results: ResultsFile) -> None:
    """Writes the page and the pictures beside the JSON file."""
    path, pictures = results.path, pictures_of(results.tables)
    for name, picture in pictures.items():
        path.with_name(f"{path.stem}_{name}.svg").write_text(picture)
    path.with_suffix(".md").write_text(page_of(results.tables, path.stem, set(pictures)))


def _medium(table: Table) -> str:
    rows = [(row, table[row.dataset]) for row in MEDIUM if row.dataset in table]
    header = ["data set", *MODELS, "the paper", "authors' commands", "bar", "reached"]
    scores = [[row.dataset, *_cells(entries, MODELS), *_published(row, entries)] for row, entries in rows]
    made = [_how(row, label, entries[label]) for row, entries in rows for label in MODELS if label in entries]
    missed = [_why_missed(row, entries) for row, entries in rows if OURS in entries and not _reached(row, entries)]
    return (
        _markdown("The paper's medium-sized graphs", header, scores)
        + "PICTURE\n"
        + MEDIUM_NOTE
        + ("\nNot reached:\n\n" + "".join(f"- {sentence}\n" for sentence in missed) if missed else "")
        + _markdown("How the scores were made", HOW, made)
    )


HOW = ["data set", "splits", "model", "runs", "validation", "seconds per run", "search of the settings", "command"]


def _how(row: Row, label: str, cell: dict[str, Any]) -> list[str]:
    validation = mean_and_deviation(cell["validation"]) if cell["validation"] else ""
    seconds = f"{cell['seconds'] / len(cell['scores']):.1f}"
    command = f"`{cell['command']}`" if cell.get("command") else "not recorded"
    runs = str(len(cell["scores"]))
    search = cell.get("search") or "not recorded"
    search = f"of an earlier recipe: {search}" if label in _outdated(row.dataset, {label: cell}) else search
    return [row.dataset, row.splits, label, runs, validation, seconds, search, command]


def _outdated(dataset: str, entries: Entries) -> list[str]:
    """The labels of the cells whose recorded settings are not those of the present recipe."""
    present = {contender.label: contender.digest() for contender in contenders(dataset)}
    return [label for label, cell in entries.items() if (cell.get("settings") or present[label]) != present[label]]


def _cells(entries: Entries, labels: Sequence[str]) -> list[str]:
    return [mean_and_deviation(entries[label]["scores"]) if label in entries else "not run" for label in labels]


def _published(row: Row, entries: Entries) -> list[str]:
    figures = ["" if figure is None else str(figure) for figure in (row.paper, row.authors)]
    return [*figures, str(row.bar), "not run" if OURS not in entries else "yes" if _reached(row, entries) else "no"]


def _reached(row: Row, entries: Entries) -> bool:
    ours, finished = _mean(entries, OURS), len(entries[OURS]["scores"]) >= row.runs
    return finished and ours >= row.bar and (GCN not in entries or ours >= _mean(entries, GCN))


def _why_missed(row: Row, entries: Entries) -> str:
    ours, runs = _mean(entries, OURS), len(entries[OURS]["scores"])
    if runs < row.runs:
        return f"{row.dataset}: only {runs} of {row.runs} runs are finished; their mean is {ours:.2f}, the bar {row.bar}."
    reasons = [f"{row.bar - ours:.2f} below the bar of {row.bar}"] if ours < row.bar else []
    if GCN in entries and ours < _mean(entries, GCN):
        reasons.append(f"{_mean(entries, GCN) - ours:.2f} below the GCN on the same splits")
    return f"{row.dataset}: the mean of {ours:.2f} is {' and '.join(reasons)}."


def _mean(entries: Entries, label: str) -> float:
    return float(np.mean(entries[label]["scores"]))


def _fresh(table: Table) -> str:
    labels = (OURS, GCN, LINEAR, MAJORITY)
    rows = [[name, *_cells(table[name], labels), _runs(table[name].values())] for name in FRESH if name in table]
    title = f"{FRESH_SPLITS} fresh splits, which no recipe has seen"
    outdated = [f"{name} ({', '.join(cells)})" for name in FRESH if (cells := _outdated(name, table.get(name, {})))]
    note = f"\nCells of earlier recipes: {'; '.join(outdated)}.\n" if outdated else ""
    return _markdown(title, ["data set", *labels, "splits"], rows) + "PICTURE\n" + FRESH_NOTE + note


def _runs(cells: Iterable[dict[str, Any]]) -> str:
    """The numbers of runs of the cells, each number once."""
    return ", ".join(map(str, sorted({len(cell["scores"]) for cell in cells})))


def _labels(table: Table) -> str:
    header = ["data set", *map(share_label, LABEL_SHARES), "seeds"]
    rows = [_labels_row(name, table[name]) for name in LABELS if name in table]
    made = [row for name in LABELS for row in _labels_how(name, table.get(name, {}))]
    return (
        _markdown("Fewer labels: share of the nodes that train", header, rows)
        + "PICTURE\n"
        + LABELS_NOTE
        + _labels_reached(table)
        + _markdown("How the scores with fewer labels were made", LABELS_HOW, made)
    )


LABELS_HOW = ["data set", "shares", "recipe", "seeds", "seconds per run", "search of the settings", "command"]


def _labels_reached(table: Table) -> str:
    """How many cells reach the paper's figures."""
    cells = [
        float(np.mean(cell["scores"]) + np.std(cell["scores"])) >= paper
        for name, figures in LABELS.items()
        for share, paper in zip(LABEL_SHARES, figures, strict=True)
        if (cell := table.get(name, {}).get(share_label(share)))
    ]
    return f"\n{sum(cells)} of {len(cells)} means are at most one standard deviation below the paper, or above it.\n"


def _labels_how(name: str, entries: Entries) -> list[list[str]]:
    """A row per recipe, and one for the cells of earlier recipes."""
    groups: dict[str, list[str]] = {}
    for share in LABEL_SHARES:
        if share_label(share) in entries:
            recipe, cell = recipe_for(name, share), entries[share_label(share)]
            present = cell.get("settings") == ours(recipe).digest()
            groups.setdefault(f"`{recipe}`" if present else "an earlier one", []).append(share_label(share))
    rows = []
    for recipe, shares in groups.items():
        cells = [entries[share] for share in shares]
        runs = [len(cell["scores"]) for cell in cells]
        seconds = f"{sum(cell['seconds'] for cell in cells) / sum(runs):.1f}"
        made = [cells[0].get("search") or "not recorded", f"`{cells[0]['command']}`" if cells[0].get("command") else ""]
        rows.append([name, ", ".join(shares), recipe, ", ".join(map(str, sorted(set(runs)))), seconds, *made])
    return rows


def _ablation(table: Table) -> str:
    rows = [row for name in ALPHA if name in table for row in _ablation_rows(name, table[name])]
    return _markdown("Ablation", ["data set", "variant", "ours", "seeds", "the paper"], rows) + "PICTURE\n" + ABLATION_NOTE


def _attention(table: Table) -> str:
    header = ["data set", *FUNCTIONS, "runs"]
    rows = [[name, *_cells(table[name], FUNCTIONS), _runs(table[name].values())] for name in VARIANTS if name in table]
    return _markdown("Other attention functions", header, rows) + ATTENTION_NOTE


def _depth(table: Table) -> str:
    labels = [depth_label(depth) for depth in DEPTHS]
    times = [f"ms per epoch, {depth}" for depth in DEPTHS]
    rows = [
        [name, *_cells(entries, labels), *(_milliseconds(entries, label) for label in labels), _runs(entries.values())]
        for name in VARIANTS
        if (entries := table.get(name))
    ]
    return _markdown("Several attention layers", ["data set", *labels, *times, "runs"], rows) + DEPTH_NOTE


def _milliseconds(entries: Entries, label: str) -> str:
    return f"{1000 * np.median(entries[label]['epoch_seconds']):.0f}" if label in entries else "not run"


def _defaults(table: Table) -> str:
    rows = [_defaults_row(name, table.get(name, {})) for name in UNSEEN]
    header = ["data set", DEFAULTS, SEARCHED, "difference", f"within {TOLERANCE}", "runs"]
    return _markdown("Without tuning: graphs that no recipe was made for", header, rows) + DEFAULTS_NOTE


SECTIONS: dict[str, Callable[[Table], str]] = {
    "medium": _medium,
    "fresh": _fresh,
    "labels": _labels,
    "ablation": _ablation,
    "attention": _attention,
    "depth": _depth,
    "defaults": _defaults,
}


def _defaults_row(name: str, entries: dict[str, Any]) -> list[str]:
    scores = {label: entries[label]["scores"] for label in (DEFAULTS, SEARCHED) if label in entries}
    cells = [mean_and_deviation(scores[label]) if label in scores else "not finished" for label in (DEFAULTS, SEARCHED)]
    if SEARCHED not in scores and (search := entries.get(UNFINISHED)):
        found = f"validation {search['best']:.1f}, defaults {search['defaults']:.1f}"
        cells[1] = f"{search['trials']} of {TRIALS} trials: {found}"
    runs = _runs(entries[label] for label in scores)
    if len(scores) < 2:
        return [name, *cells, "", "", runs]
    difference = float(np.mean(scores[DEFAULTS]) - np.mean(scores[SEARCHED]))
    return [name, *cells, f"{difference:+.1f}", "yes" if difference >= -TOLERANCE else "no", runs]


def _labels_row(name: str, entries: dict[str, Any]) -> list[str]:
    ours = [entries.get(share_label(share)) for share in LABEL_SHARES]
    pairs = zip(ours, LABELS[name], strict=True)
    cells = [f"{mean_and_deviation(entry['scores'])} ({paper:.1f})" if entry else "" for entry, paper in pairs]
    return [name, *cells, _runs(filter(None, ours))]


def _ablation_rows(name: str, entries: dict[str, Any]) -> list[list[str]]:
    paper = {alpha_label(alpha): f"{figure:.1f}" for alpha, figure in ALPHA[name].items()}
    labels = [*(label for label in paper if label in entries), *(label for label in entries if label not in paper)]
    scores = {label: entries[label]["scores"] for label in labels}
    return [
        [name, label, mean_and_deviation(scores[label]), str(len(scores[label])), paper.get(label, "")] for label in labels
    ]


def _markdown(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"\n## {title}\n", f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"
