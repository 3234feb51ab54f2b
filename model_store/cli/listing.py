"""`sgf-models list`: every version as an entry (JSON) and as a row of a table."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from model_store.cli.terminal import format_bytes
from model_store.errors import SnapshotError, StoreUnavailable, UnknownVersion
from model_store.versions.model_versions import ModelVersions

HEADER = ("model", "version", "", "created", "nodes", "edges", "states", "size", "scores")
DROPPED = ("states", "edges", "size", "nodes", "created")
"""The columns that a narrow terminal does not show, in the order in which they are dropped."""
MIN_LAST_WIDTH = 24


def terminal_width() -> int | None:
    """None if the output goes to a file or a pipe: its lines may have any length."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def list_entries(versions: ModelVersions) -> list[dict[str, Any]]:
    live, entries = versions.state().live, []
    for version in versions.versions():
        entry: dict[str, Any] = {"model": versions.name, "version": version, "live": version == live}
        try:
            manifest = versions.manifest(version)
        except UnknownVersion:
            continue  # another process has just pruned it
        except (SnapshotError, StoreUnavailable) as error:
            entries.append(entry | {"damaged": str(error)})
            continue
        entry |= {"snapshot": manifest.snapshot, "created": manifest.created, "nodes": manifest.sizes.nodes}
        entry |= {"edges": manifest.sizes.adjacency_entries // 2, "states": manifest.sizes.states}
        entry |= {"bytes": sum(file.size for file in manifest.files.values()), "scores": dict(manifest.scores)}
        entries.append(entry)
    return entries


def format_entries(entries: Sequence[Mapping[str, Any]], width: int | None) -> str:
    """Returns a table. With a width, it drops columns and wraps the last one to fit; without one, it has every column."""
    return format_table(HEADER, [_cells(entry) for entry in entries], width)


def _cells(entry: Mapping[str, Any]) -> list[str]:
    cells = [entry["model"], str(entry["version"]), "live" if entry["live"] else ""]
    if "damaged" in entry:
        return [*cells, "", "", "", "", "", f"damaged: {entry['damaged']}"]
    scores = entry["scores"]
    test_scores = {name: score for name, score in scores.items() if name.startswith("test_")}  # `show` prints all
    sizes = [f"{entry['nodes']:,}", f"{entry['edges']:,}", entry["states"], format_bytes(entry["bytes"])]
    return [*cells, format_time(entry["created"]), *sizes, format_values(test_scores or scores)]


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Aligns columns of numbers to the right, and all others to the left. A table that is too wide loses columns."""
    columns = list(zip(header, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    room, dropped = None, iter(DROPPED)  # room for the last column
    while width is not None and (room := width - sum(widths[:-1]) - 2 * (len(widths) - 1)) < min(MIN_LAST_WIDTH, widths[-1]):
        if (name := next(dropped, None)) is None:
            break
        position = [column[0] for column in columns].index(name)
        del columns[position], widths[position]
    numeric = [all(cell.replace(",", "").isdigit() or not cell for cell in column[1:]) for column in columns]
    lines = []
    for *cells, last in zip(*columns, strict=True):
        aligned = [
            cell.rjust(size) if right else cell.ljust(size)
            for cell, size, right in zip(cells, widths[:-1], numeric[:-1], strict=True)
        ]
        start = "  ".join([*aligned, ""])
        last = last.rjust(widths[-1]) if numeric[-1] else last
        parts = [last] if room is None else textwrap.wrap(last, max(room, MIN_LAST_WIDTH)) or [""]
        lines += [(start if not number else " " * len(start)) + part for number, part in enumerate(parts)]
    return "\n".join(line.rstrip() for line in lines)


def format_values(values: Mapping[str, Any]) -> str:
    pairs = ((name, f"{value:.4g}" if isinstance(value, float) else value) for name, value in values.items())
    return ", ".join(f"{name} {value}" for name, value in pairs if value is not None)


def format_time(text: str) -> str:
    """Returns a time of the store as e.g. 2026-11-17 23:11 UTC, and a text that is not a time unchanged."""
    try:
        return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return text
