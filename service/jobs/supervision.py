"""Looking after one training: its events become the job's record, a cancel or the time limit ends it, its end is told."""

from __future__ import annotations

import json
import signal
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from model_store import Store, StoreError
from service.jobs.catalogue import Catalogue
from service.jobs.record import Job, State, now, without_paths
from service.jobs.runner import Line
from service.jobs.submission import parsed
from service.jobs.training_process import EVENTS, LOG, TrainingProcess
from service.settings import Settings

PATIENCE_SECONDS = 0.5
"""How long a training that is told to stop may take before it is killed."""
TAIL_BYTES, TAIL_LINES = 8192, 40


class Supervision:
    """Call `step` again and again until the job is not active any more."""

    def __init__(self, job: Job, folder: Path, training: TrainingProcess | None, settings: Settings) -> None:
        """`training` is None where there was one, and it is dead."""
        self.job, self.lines = job, list[str]()
        self._folder, self._training, self._settings = folder, training, settings
        self._place = 0
        self._last: dict[str, Any] = {}
        self._stopping: tuple[State, str | None] | None = None
        self._kill_at = 0.0

    @classmethod
    def start(cls, job: Job, folder: Path, settings: Settings, tied: bool = False) -> Supervision:
        """Raises Refusal: what was submitted cannot be run any more; OSError: no process, no disk."""
        arguments = parsed(job.request).arguments(Catalogue(settings.data_root))
        arguments += [f"--store={settings.store.resolve()}", f"--model={job.model}", f"--job={job.id}"]
        return cls(job, folder, TrainingProcess.start(folder, arguments, settings, tied), settings)

    @classmethod
    def adopt(cls, job: Job, folder: Path, settings: Settings) -> Supervision:
        return cls(job, folder, TrainingProcess.adopt(folder), settings)

    def step(self, cancel: bool) -> Job:
        alive = self._training is not None and self._training.alive()  # before its events: a dead one writes no more
        self._read_events()
        if not alive:
            self.job = settled(self._ended(cancel), self._settings)
        elif cancel and self._stopping is None:
            self._stop("cancelled", None)
        elif self._over_time() and self._stopping is None:
            limit = self._settings.training_seconds
            self._stop("failed", f"stopped after {limit:g} s, the limit of a training (SGF_TRAINING_SECONDS)")
        elif self._stopping is not None and time.monotonic() >= self._kill_at:
            self._send(signal.SIGKILL)
        return self.job

    def _stop(self, state: State, reason: str | None) -> None:
        self._stopping, self._kill_at = (state, reason), time.monotonic() + PATIENCE_SECONDS
        self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        if self._training is not None:
            self._training.signal(number)

    def _over_time(self) -> bool:
        if self.job.started_at is None:
            return False
        age = datetime.now(UTC) - datetime.fromisoformat(self.job.started_at)
        return age.total_seconds() > self._settings.training_seconds

    def _read_events(self) -> None:
        for line, place in whole_lines(self._folder / EVENTS, self._place):
            self._place = place
            self.lines.append(line)
            self._last = json.loads(line)
            self.job = self.job.with_event(self._last)

    def _ended(self, cancel: bool) -> Job:
        last = self._last.get("event")
        if last == "finished":
            return self.job.ended("succeeded")
        if last == "failed":
            return self.job.ended("failed", without_paths(self.job.error or "it does not say why"))
        if self._stopping is not None:
            return self.job.ended(*self._stopping)
        if cancel:  # whoever stopped it died before it could say so
            return self.job.ended("cancelled")
        if last == "stopped":
            return self.job.ended("failed", "somebody stopped the training process with a signal")
        code = None if self._training is None else self._training.exit_code
        how = "" if code is None else f" (signal {-code})" if code < 0 else f" (exit code {code})"
        told = f"the training process ended without a word{how}: it was killed, or the machine went down"
        return self.job.ended("failed", told)


def settled(job: Job, settings: Settings) -> Job:
    """The store has the last word on what a job published, and whether that is live: its events may have come short."""
    try:
        versions = Store(settings.store).model(job.model)
        later = [one for one in versions.versions() if one > (job.parent or 0)]
        ours = [one for one in later if versions.manifest(one).training.get("job") == job.id]
        if not ours:
            return job
        manifest, live = versions.manifest(ours[-1]), versions.live() == ours[-1]
    except (StoreError, OSError):
        return job
    changes = {"version": ours[-1], "snapshot": manifest.snapshot, "scores": dict(manifest.scores)}
    return job.model_copy(update=changes | {"live": live or job.live})


def running(job: Job) -> Job:
    return job.model_copy(update={"state": "running", "started_at": now()})


def whole_lines(path: Path, place: int) -> list[tuple[str, int]]:
    """The lines from a place on, each with the place behind it; a line that is still being written is left for later."""
    try:
        with path.open("rb") as file:
            file.seek(place)
            content = file.read()
    except FileNotFoundError:
        return []
    found = []
    for line in content.splitlines(keepends=True):
        if line.endswith(b"\n"):
            place += len(line)
            found.append((without_paths(line.decode(errors="replace").rstrip("\n")), place))
    return found


def numbered_lines(folder: Path, after: int) -> list[Line]:
    lines = whole_lines(folder / EVENTS, 0)
    return [Line(number, text) for number, (text, _) in enumerate(lines, 1) if number > after]


def log_tail(folder: Path) -> str:
    try:
        with (folder / LOG).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return without_paths("\n".join(text.splitlines()[-TAIL_LINES:]))
