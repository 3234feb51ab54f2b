"""The pictures of docs/results.md: a row per data set or variant, with a dot per model and a bar of one deviation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import numpy as np

from training.paper.contenders import GCN, LINEAR, OURS, PYG
from training.paper.labels import alpha_label, share_label
from training.paper.published_figures import ALPHA, FRESH, LABEL_SHARES, LABELS, MEDIUM
from training.paper.results import Table

WIDTH, LEFT, RIGHT, TOP, STEP = 720, 170, 20, 60, 22
COLORS = {OURS: "#2563eb", GCN: "#dc2626", PYG: "#059669", LINEAR: "#a16207", "the paper": "#6b7280"}
Dots = dict[str, tuple[float, float]]
"""Mean and deviation by the name of the model."""


def pictures_of(tables: dict[str, Table]) -> dict[str, str]:
    """By the name of a table, its picture as SVG."""
    rows = {name: make(tables[name]) for name, make in ROWS.items() if tables.get(name)}
    return {name: draw(TITLES[name], made) for name, made in rows.items() if made}


def draw(title: str, rows: Sequence[tuple[str, Dots]]) -> str:
    """Draws the dots of each row on one scale."""
    ends = [mean + sign * deviation for _, dots in rows for mean, deviation in dots.values() for sign in (-1, 1)]
    low, high = 5 * np.floor(min(ends) / 5), 5 * np.ceil(max(ends) / 5 + 0.01)
    height = TOP + STEP * len(rows) + 30

    def x(value: float) -> float:
        return float(LEFT + (WIDTH - LEFT - RIGHT) * (value - low) / (high - low))

    body = [f'<rect width="{WIDTH}" height="{height}" fill="white"/>', _text(10, 20, title, "font-weight:bold")]
    names = [name for name in COLORS if any(name in dots for _, dots in rows)]
    for number, name in enumerate(names):
        body += [_dot(LEFT + 110 * number, 38, COLORS[name]), _text(LEFT + 8 + 110 * number, 42, name)]
    for value in np.arange(low, high + 1, 5):
        body.append(f'<line x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{TOP - 8}" y2="{height - 22}" stroke="#e5e7eb"/>')
        body.append(_text(x(value), height - 8, f"{value:g}", "text-anchor:middle"))
    for number, (label, dots) in enumerate(rows):
        y = TOP + STEP * number + 6
        body.append(_text(LEFT - 12, y + 4, label, "text-anchor:end"))
        for name in names:
            if name in dots:
                body += _dot_with_bar(x, y, dots[name], COLORS[name])
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">{"".join(body)}</svg>\n'


def _dot_with_bar(x: Callable[[float], float], y: float, dot: tuple[float, float], color: str) -> list[str]:
    mean, deviation = dot
    ends = f'x1="{x(mean - deviation):.1f}" x2="{x(mean + deviation):.1f}"'
    line = f'<line {ends} y1="{y}" y2="{y}" stroke="{color}" stroke-width="2" opacity="0.4"/>'
    return [line, _dot(x(mean), y, color)]


def _dot(x: float, y: float, color: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y}" r="4" fill="{color}"/>'


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y}" style="{style}">{escape(text)}</text>'


def _dots(entries: dict[str, dict[str, Any]], paper: float | None = None) -> Dots:
    dots = {
        name: (float(np.mean(entries[name]["scores"])), float(np.std(entries[name]["scores"])))
        for name in COLORS
        if name in entries
    }
    return dots | ({} if paper is None else {"the paper": (paper, 0.0)})


def _medium(table: Table) -> list[tuple[str, Dots]]:
    return [(row.dataset, _dots(table[row.dataset], row.paper)) for row in MEDIUM if row.dataset in table]


def _fresh(table: Table) -> list[tuple[str, Dots]]:
    return [(name, _dots(table[name])) for name in FRESH if name in table]


def _labels(table: Table) -> list[tuple[str, Dots]]:
    pairs = {name: zip(LABEL_SHARES, LABELS[name], strict=True) for name in LABELS if name in table}
    return [
        (f"{name}, {share_label(share)}", _dots({OURS: table[name][share_label(share)]}, paper))
        for name, figures in pairs.items()
        for share, paper in figures
        if share_label(share) in table[name]
    ]


def _ablation(table: Table) -> list[tuple[str, Dots]]:
    return [
        (f"{name}, {alpha_label(alpha)}", _dots({OURS: table[name][alpha_label(alpha)]}, paper))
        for name in ALPHA
        if name in table
        for alpha, paper in ALPHA[name].items()
        if alpha_label(alpha) in table[name]
    ]


ROWS: dict[str, Callable[[Table], list[tuple[str, Dots]]]] = {
    "medium": _medium,
    "fresh": _fresh,
    "labels": _labels,
    "ablation": _ablation,
}
TITLES = {
    "medium": "Test scores on the medium-sized graphs",
    "fresh": "Test scores on fresh splits",
    "labels": "Test scores by share of training nodes",
    "ablation": "Test scores by alpha, the share of the graph branch",
}
