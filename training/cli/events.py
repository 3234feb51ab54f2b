"""How a run tells of itself while it runs: a file of JSON lines that it appends to (`--events PATH`).

Every line is {"event": ..., "at": ..., ...}; docs/operations.md lists the events. A file survives whoever reads it, and a
line is one write, so a run that is killed leaves whole lines. On a full disk lines are lost or cut short; the run goes on.

A run may have a permit (`--only-while FILE`): whoever answers for it, and cannot reach it any more, takes that file away. It
is asked for with every step that is told, right before a version is published, and, the store locked, before it goes live.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from sgformer import SgformerError

Event = Literal["started", "data", "epoch", "published", "verdict", "activated", "finished", "stopped", "failed"]
STEPS: tuple[Event, ...] = ("data", "epoch", "published", "verdict")
"""There is more to be done after these, which needs the permit."""

SHORTEST_SECONDS, LONGEST_SECONDS = 0.2, 10.0
"""Between two epochs that are told: a hundredth of the time so far, within these."""


class NoPermit(SgformerError):  # noqa: N818  # it says what is the case
    """Nobody answers for this run any more, and another may be under way."""


class Events:
    """Tells nobody where there is no path."""

    def __init__(self, path: Path | None = None, permit: Path | None = None) -> None:
        self._permit, self._cut = permit, False
        self._handle = None if path is None else os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def tell(self, event: Event, **facts: Any) -> None:
        """Raises NoPermit, after a step only: the last word of a run can always be told."""
        if self._handle is not None:
            line = {"event": event, "at": datetime.now(UTC).isoformat(timespec="milliseconds"), **facts}
            with suppress(OSError):  # no space: what is done counts, not what is told of it
                self._append(self._handle, json.dumps(line).encode() + b"\n")
        if event in STEPS:
            self.ask()

    def ask(self) -> None:
        """Raises NoPermit where there was a permit, and it was taken away."""
        if self._permit is not None:
            try:
                self._permit.open("rb").close()  # over NFS, looking at it might show what was there a minute ago
            except FileNotFoundError:
                raise NoPermit("the job was given up: whoever started this run does not answer for it any more") from None

    def _append(self, handle: int, line: bytes) -> None:
        rest, self._cut = (b"\n" + line if self._cut else line), True
        while rest:  # a disk that fills takes part of it
            rest = rest[os.write(handle, rest) :]
        self._cut = False


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
