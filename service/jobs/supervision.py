"""Supervises one training: applies its events to the job's record, stops it on a cancel or a time limit, records its end."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from model_store import ModelVersions, Store, StoreError
from service.http.errors import Refusal
from service.jobs.catalogue import Catalogue
from service.jobs.progress import event_in, log_tail, whole_lines
from service.jobs.record import Job, State, now
from service.jobs.redaction import Redaction
from service.jobs.runner import Place
from service.jobs.submission import parsed
from service.jobs.training_process import TrainingProcess
from service.settings import Settings

PATIENCE_SECONDS = 0.5
"""Between the request to stop and the kill."""


class Supervision:
    """Call `step` until the job is not active any more."""

    def __init__(self, job: Job, folder: Path, training: TrainingProcess | None, settings: Settings) -> None:
        """`training` is None if it is dead."""
        self.job, self.lines = job, list[str]()
        self._folder, self._training, self._settings = folder, training, settings
        self._redaction = Redaction.of(settings)
        self._place = Place()
        self._last: dict[str, Any] = {}
        self._stopping: tuple[State, str | None] | None = None
        self._kill_at = 0.0

    @classmethod
    def start(cls, job: Job, folder: Path, settings: Settings, tied: bool = False) -> Supervision:
        """If the request is not valid any more, or no process starts, `.job` of the result has failed."""
        try:
            arguments = parsed(job.request).arguments(Catalogue(settings.data_root))
            arguments += [f"--store={settings.store.resolve()}", f"--model={job.model}", f"--job={job.id}"]
            arguments.append(f"--keep={settings.keep_versions}")
            return cls(job, folder, TrainingProcess.start(folder, arguments, settings, tied), settings)
        except (Refusal, OSError) as error:
            reason = f"the training did not start: {error.strerror}" if isinstance(error, OSError) else str(error)
            return cls(job.ended("failed", reason), folder, None, settings)

    @classmethod
    def adopt(cls, job: Job, folder: Path, settings: Settings) -> Supervision:
        return cls(job, folder, TrainingProcess.adopt(folder), settings)

    def step(self, cancel: bool) -> Job:
        if not self.job.active:
            return self.job
        alive = self._training is not None and self._training.alive()  # before reading events: a dead one writes no more
        self._read_events()
        if not alive or self._training is None:
            self.job = self._ended(cancel)
            return self.job
        self._training.hurry()
        if cancel:
            self.stop("cancelled")
        elif self._over_time():
            limit = self._settings.training_seconds
            self.stop("failed", f"stopped after {limit:g} s, the limit of a training (SGF_TRAINING_SECONDS)")
        if self._stopping is not None and time.monotonic() >= self._kill_at:
            self._send(signal.SIGKILL)
        return self.job

    def log_tail(self) -> str:
        return log_tail(self._folder, self._redaction)

    def stop(self, state: State, reason: str | None = None) -> None:
        """Asks the training to end, which gives the job this state; `step` kills it soon after. The first call counts."""
        if self._stopping is None and self.job.active:
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
        for place, line in whole_lines(self._folder, self._redaction, self._place):
            self._place = place
            self.lines.append(line)
            if event := event_in(line):  # else a full disk truncated it
                self._last = event
                self.job = self.job.with_event(event)

    def _ended(self, cancel: bool) -> Job:
        if self._last.get("event") == "failed":
            return settled(self.job.ended("failed", self.job.error or "no reason given"), self._settings)
        return closed(self._outcome(cancel), self._settings)

    def _outcome(self, cancel: bool) -> Job:
        last, code = self._last.get("event"), None if self._training is None else self._training.exit_code
        if last == "finished" or code == 0:  # a full disk may have taken the event
            return self.job.ended("succeeded")
        if self._stopping is not None:
            return self.job.ended(*self._stopping)
        if cancel:  # its supervisor died after stopping it
            return self.job.ended("cancelled")
        if last == "stopped":
            return self.job.ended("failed", "the training process was stopped by a signal")
        return self.job.ended("failed", f"the training process ended without a last event{_how(code)}")


def _how(code: int | None) -> str:
    if code is not None and code > 0:
        return f" (exit code {code}): its log may say why, unless the disk was full"
    return f"{'' if code is None else f' (signal {-code})'}: it was killed, or the machine went down"


def closed(job: Job, settings: Settings) -> Job:
    """A job whose version is live has succeeded, even if its process was stopped before its last event."""
    job = settled(job, settings)
    return job.ended("succeeded") if job.live else job


def settled(job: Job, settings: Settings) -> Job:
    """The job with what the store says it published and made live: its events may be incomplete."""
    try:
        versions = Store(settings.store).model(job.model)
        later = [version for version in versions.versions() if version > (job.parent or 0)]
    except (StoreError, OSError):
        return job
    for version in reversed(later):
        with suppress(StoreError, OSError):  # a damaged version of another job
            manifest = versions.manifest(version)
            if manifest.training.get("job") == job.id:
                changes = {"version": version, "snapshot": manifest.snapshot, "scores": dict(manifest.scores)}
                return job.model_copy(update=changes | {"live": job.live or _is_live(versions, version)})
    return job


def _is_live(versions: ModelVersions, version: int) -> bool:
    try:
        return versions.live() == version
    except (StoreError, OSError):
        return False


def running(job: Job) -> Job:
    return job.model_copy(update={"state": "running", "started_at": now()})
