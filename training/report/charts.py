"""Small SVG charts for the report, without scripts, fonts or other files."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT, MARGIN = 420, 240, 40
COLORS = ("#2563eb", "#dc2626", "#059669")
Series = tuple[str, Sequence[float]]


def lines(title: str, across: Sequence[float], series: Sequence[Series], x_label: str) -> str:
    """Draws each series over `across`. Two series have a scale each (left and right); otherwise all share one."""
    body = [_frame(title, x_label)]
    low, high = min(across), max(across)
    for number, (name, values) in enumerate(series):
        bottom, top = _range(values if len(series) == 2 else [value for _, numbers in series for value in numbers])
        points = [f"{_x(x, low, high):.1f},{_y(y, bottom, top):.1f}" for x, y in zip(across, values, strict=True)]
        color = COLORS[number % len(COLORS)]
        body.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        side = WIDTH - 4 if number and len(series) == 2 else 4
        anchor = "end" if side > 4 else "start"
        for value, y in ((top, MARGIN + 4), (bottom, HEIGHT - MARGIN)):
            body.append(f'<text x="{side}" y="{y}" fill="{color}" text-anchor="{anchor}">{value:.3g}</text>')
        body.append(f'<text x="{MARGIN + 6 + 150 * number}" y="{MARGIN - 6}" fill="{color}">{escape(name)}</text>')
    body.append(f'<text x="{MARGIN}" y="{HEIGHT - MARGIN + 14}">{low:g}</text>')
    body.append(f'<text x="{WIDTH - MARGIN}" y="{HEIGHT - MARGIN + 14}" text-anchor="end">{high:g}</text>')
    return _svg(body)


def bars(title: str, names: Sequence[str], values: Sequence[float], notes: Sequence[str], x_label: str) -> str:
    """Draws a bar per name, with a value from 0 to 1 and a note above it."""
    body, step = [_frame(title, x_label)], (WIDTH - 2 * MARGIN) / max(1, len(names))
    for number, (name, value, note) in enumerate(zip(names, values, notes, strict=True)):
        x, y = MARGIN + number * step, _y(value, 0, 1)
        body.append(
            f'<rect x="{x + 2:.1f}" y="{y:.1f}" width="{step - 4:.1f}" '
            f'height="{HEIGHT - MARGIN - y:.1f}" fill="{COLORS[0]}"/>'
        )
        middle = f'x="{x + step / 2:.1f}" text-anchor="middle"'
        body.append(f'<text {middle} y="{y - 3:.1f}">{escape(note)}</text>')
        body.append(f'<text {middle} y="{HEIGHT - MARGIN + 14}">{escape(name)}</text>')
    return _svg(body)


def add_diagonal(chart: str) -> str:
    """Adds the line where both axes have the same value."""
    ends = f'x1="{MARGIN}" y1="{HEIGHT - MARGIN}" x2="{WIDTH - MARGIN}" y2="{MARGIN}"'
    line = f'<line {ends} stroke="#999" stroke-dasharray="4"/>'
    return chart.replace("</svg>", f"{line}</svg>")


def _svg(body: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" xmlns="http://www.w3.org/2000/svg">{"".join(body)}</svg>'


def _frame(title: str, x_label: str) -> str:
    inner = f'x="{MARGIN}" y="{MARGIN}" width="{WIDTH - 2 * MARGIN}" height="{HEIGHT - 2 * MARGIN}"'
    return (
        f'<rect {inner} fill="none" stroke="#ccc"/><text x="{MARGIN}" y="16" class="title">{escape(title)}</text>'
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>'
    )


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _x(value: float, low: float, high: float) -> float:
    return MARGIN + (WIDTH - 2 * MARGIN) * ((value - low) / (high - low) if high > low else 0.5)


def _y(value: float, low: float, high: float) -> float:
    return HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * (value - low) / (high - low)
