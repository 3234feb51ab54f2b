"""Writes the events of a run (`--events FILE`) and obeys its fencing file (`--only-while FILE`).

`model_store.run_contract` defines the events. The service removes the fencing file of a run that it has abandoned, because
it may not reach the machine of the run. The run checks the file after most events, before it publishes a version, and, with
the store locked, before a version goes live.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from model_store.run_contract import DataEvent, EpochEvent, PublishedEvent, RunEvent, VerdictEvent
from sgformer import SgformerError

SHORTEST_SECONDS, LONGEST_SECONDS = 0.2, 10.0


class RunAbandoned(SgformerError):  # noqa: N818  # names what happened
    """The fencing file was removed: the service has abandoned this run and may have started another one."""


class EventWriter:
    """Appends events to a file, or discards them if there is no path. A full disk does not end the run.

    Each line is one write, so a killed run leaves complete lines.
    """

    def __init__(self, path: Path | None = None, fencing_file: Path | None = None) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._handle = None if path is None else os.open(path, flags, 0o644)
        self._fencing_file, self._truncated = fencing_file, False

    def write(self, event: RunEvent) -> None:
        """Raises RunAbandoned if the run must stop (`check_fence`), but never for the last event of a run."""
        if self._handle is not None:
            rest = ("\n" * self._truncated + event.to_line() + "\n").encode()
            self._truncated = True
            with suppress(OSError):  # the disk is full
                while rest:
                    rest = rest[os.write(self._handle, rest) :]
                self._truncated = False
        if isinstance(event, DataEvent | EpochEvent | PublishedEvent | VerdictEvent):
            self.check_fence()

    def check_fence(self) -> None:
        """Raises RunAbandoned if the run has a fencing file and it was removed."""
        if self._fencing_file is not None:
            try:
                self._fencing_file.open("rb").close()  # over NFS, stat may return an outdated answer
            except FileNotFoundError:
                raise RunAbandoned("the service abandoned this job (its fencing file was removed); the run stops") from None


class EpochPace:
    """Limits how often epochs are reported: intervals grow to a hundredth of the elapsed time, within two bounds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = self._last = clock()

    def due(self) -> bool:
        now = self._clock()
        if now - self._last < min(max(SHORTEST_SECONDS, (now - self._start) / 100), LONGEST_SECONDS):
            return False
        self._last = now
        return True
