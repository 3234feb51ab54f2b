"""Reads the events and the tail of the log of a training from its job's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from service.jobs.redaction import Redaction
from service.jobs.runner import Line, Place
from service.jobs.training_process import EVENTS, LOG

TAIL_BYTES, TAIL_LINES = 8192, 40


def whole_lines(folder: Path, redaction: Redaction, after: Place) -> list[Line]:
    """The complete lines behind a place."""
    number, byte = after
    try:
        with (folder / EVENTS).open("rb") as file:
            file.seek(byte)
            *whole, _incomplete = file.read().split(b"\n")
    except FileNotFoundError:
        return []
    lines = []
    for line in whole:
        byte += len(line) + 1
        if line:  # an empty line follows one that a full disk truncated
            number += 1
            lines.append(Line(Place(number, byte), redaction.line(line.decode(errors="replace"))))
    return lines


def event_in(line: str) -> dict[str, Any]:
    """Empty if the line is not a JSON object."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}


def log_tail(folder: Path, redaction: Redaction) -> str:
    try:
        with (folder / LOG).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return redaction.text("\n".join(text.splitlines()[-TAIL_LINES:]))
