"""How a run tells of itself while it runs: a file of JSON lines that it appends to (`--events PATH`).

Every line is {"event": ..., "at": ..., ...}; docs/training.md lists the events. A file survives whoever reads it, and a line
is one write, so a run that is killed leaves whole lines.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

Event = Literal["started", "data", "epoch", "published", "verdict", "activated", "finished", "stopped", "failed"]

SHORTEST_SECONDS, LONGEST_SECONDS = 0.2, 10.0
"""Between two epochs that are told: a hundredth of the time so far, within these."""


class Events:
    """Tells nobody where there is no path."""

    def __init__(self, path: Path | None = None) -> None:
        self._handle = None if path is None else os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def tell(self, event: Event, **facts: Any) -> None:
        if self._handle is not None:
            line = {"event": event, "at": datetime.now(UTC).isoformat(timespec="milliseconds"), **facts}
            content = json.dumps(line).encode() + b"\n"
            while content:  # a disk that fills takes part of it
                content = content[os.write(self._handle, content) :]


class Pace:
    """Of the epochs: often enough to watch, and never so often that a run of a million fills the disk."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = self._last = clock()

    def due(self) -> bool:
        now = self._clock()
        if now - self._last < min(max(SHORTEST_SECONDS, (now - self._start) / 100), LONGEST_SECONDS):
            return False
        self._last = now
        return True
