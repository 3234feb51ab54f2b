"""What a training has told so far: its events, and the end of its log. Files in its job's folder, which others may read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from service.jobs.redaction import Redaction
from service.jobs.runner import Line
from service.jobs.training_process import EVENTS, LOG

TAIL_BYTES, TAIL_LINES = 8192, 40


def whole_lines(folder: Path, redaction: Redaction, place: int = 0) -> list[tuple[str, int]]:
    """The events from a place on, each with the place behind it; a line that is still being written is left for later."""
    try:
        with (folder / EVENTS).open("rb") as file:
            file.seek(place)
            *whole, _ = file.read().split(b"\n")
    except FileNotFoundError:
        return []
    found = []
    for line in whole:
        place += len(line) + 1
        if line:  # an empty one ends a line that a full disk has cut short
            found.append((redaction.line(line.decode(errors="replace")), place))
    return found


def numbered_lines(folder: Path, redaction: Redaction, after: int) -> list[Line]:
    lines = whole_lines(folder, redaction)
    return [Line(number, text) for number, (text, _) in enumerate(lines, 1) if number > after]


def event_in(line: str) -> dict[str, Any]:
    """Nothing where the line says nothing that can be understood."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def log_tail(folder: Path, redaction: Redaction) -> str:
    try:
        with (folder / LOG).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return redaction.text("\n".join(text.splitlines()[-TAIL_LINES:]))
