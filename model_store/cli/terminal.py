"""What the command lines of all packages share: default options, tables, and output to a terminal."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path


def default_store() -> Path:
    """The default of --store. An empty environment variable counts as unset, here and in `default_model`."""
    return Path(os.environ.get("SGF_STORE") or "var/models")


def default_model() -> str | None:
    """The default of --model. None: the command uses the only model of the store, if there is only one."""
    return os.environ.get("SGF_MODEL") or None


def at_least_one(text: str) -> int:
    """The argparse type of a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def print_output(text: str) -> None:
    """Prints to standard output. A closed pipe is not an error: the reader, e.g. `head`, has read enough."""
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python flushes again at exit, and fails


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligns columns of numbers to the right, and all others to the left."""
    columns = list(zip(header, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    numeric = [all(cell.replace(",", "").isdigit() or not cell for cell in column[1:]) for column in columns]
    lines = []
    for row in (header, *rows):
        aligned = zip(row, widths, numeric, strict=True)
        cells = [cell.rjust(width) if right else cell.ljust(width) for cell, width, right in aligned]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def format_bytes(size: int) -> str:
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def describe_publication(model: str, version: int, nodes: int, live: bool) -> str:
    """Returns a line that names the published version and the command that activates it."""
    state = "live" if live else f"not live yet: sgf-models --model {model} activate {version}"
    return f"published {model} {version}, {nodes:,} nodes, {state}"
