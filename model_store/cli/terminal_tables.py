"""How the store looks in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from model_store.versions.history import Event


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need to be; those of numbers to the right."""
    columns = list(zip(header, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [all(cell.replace(",", "").isdigit() or not cell for cell in column[1:]) for column in columns]
    lines = []
    for row in (header, *rows):
        cells = [cell.rjust(w) if number else cell.ljust(w) for cell, w, number in zip(row, widths, right, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def human_bytes(size: int) -> str:
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def published(name: str, version: int, nodes: int, live: bool) -> str:
    """What was published, and what is left to do until it is live."""
    state = "live" if live else f"not live yet: sgf-models --model {name} activate {version}"
    return f"published {name} {version}, {nodes:,} nodes, {state}"


def describe(manifest: dict[str, Any], events: Sequence[Event]) -> str:
    """A manifest as `show` prints it."""
    config = manifest["config"]
    shape = f"{config['layers']} GCN layers, {config['heads']} head(s), hidden size {config['hidden']}"
    rows = [
        ["model", f"{manifest['model']} {manifest['version']}{' (live)' if manifest['live'] else ''}"],
        ["snapshot", manifest["snapshot"]],
        ["created", manifest["created"]],
        ["graph", f"{manifest['nodes']:,} nodes, {manifest['edges']:,} edges, {config['in_features']:,} features"],
        ["task", f"{config['task']}, {config['out_features']} output(s)"],
        ["architecture", f"{shape}, {config['normalization']} normalisation, GCN input {config['gnn_input']}"],
        ["states", f"{manifest['states']['dtype']}{_error(manifest['states']['error'])}"],
        *([key, _flat(manifest[key])] for key in ("dataset", "training", "scores", "libraries") if manifest[key]),
        ["size", human_bytes(sum(entry["size"] for entry in manifest["files"].values()))],
    ]
    if manifest["classes"]:
        rows.append(["classes", ", ".join(manifest["classes"][:12]) + (" ..." if len(manifest["classes"]) > 12 else "")])
    rows += [
        ["live" if not number else "", f"{event.at} {event.action} {event.version}"] for number, event in enumerate(events)
    ]
    return "\n".join(f"{name:<13}{value}" for name, value in rows)


def _error(error: dict[str, float]) -> str:
    return f", answers off by at most {max(error.values()):.1e}" if any(error.values()) else ""


def _flat(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()
    )
