"""Supervises one training: applies its events to the job, stops it on a cancel or a time limit, determines its result."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from datetime import UTC, datetime

from model_store import Store, StoreError
from model_store.run_contract import JOB_KEY, FailedEvent, FinishedEvent, RunEvent, StoppedEvent
from service.jobs.job import Job, State
from service.jobs.job_folder import JobFolder
from service.jobs.ledger import JobError
from service.jobs.submission import Submission
from service.jobs.training_process import TrainingProcess
from service.settings import Settings

KILL_SECONDS = 0.5  # between SIGTERM and SIGKILL


class Supervision:
    """Call `step` until the job is not active any more."""

    def __init__(self, job: Job, training: TrainingProcess, settings: Settings) -> None:
        self.job, self.folder, self.lines = job, JobFolder(settings, job.id), list[str]()
        self._training, self._settings = training, settings
        self._position = 0
        self._last_event: RunEvent | None = None
        self._stopping: tuple[State, str | None] | None = None
        self._kill_at = 0.0

    @classmethod
    def start(cls, job: Job, settings: Settings, tied: bool) -> Supervision:
        """Starts the training of a job. If its request is no longer valid, or no process starts, the job has failed
        (`.job`).

        `tied`: see `TrainingProcess.start`.
        """
        folder = JobFolder(settings, job.id)
        try:
            submission = Submission.of(job)
            arguments = submission.arguments(settings.data_root)
            arguments += [f"--store={settings.store.resolve()}", f"--model={job.model}", f"--job={job.id}"]
            arguments.append(f"--keep={settings.keep_versions}")
            return cls(job, TrainingProcess.start(folder, arguments, settings, tied, submission.processes), settings)
        except (JobError, OSError) as error:
            reason = f"the training did not start: {error.strerror}" if isinstance(error, OSError) else str(error)
            return cls(job.ended("failed", reason), TrainingProcess(folder), settings)

    def step(self) -> Job:
        if not self.job.active:
            return self.job
        alive = self._training.alive()  # before the events are read: a dead training writes no more
        self._read_events()
        if not alive:
            self.job = self._result()
            return self.job
        self._training.release_if_killed()
        if self._is_over_time():
            limit = self._settings.training_seconds
            self.stop("failed", f"stopped after {limit:g} s, the limit of a training (SGF_TRAINING_SECONDS)")
        if self._stopping is not None and time.monotonic() >= self._kill_at:
            self._training.signal(signal.SIGKILL)
        return self.job

    def stop(self, state: State, reason: str | None = None) -> None:
        """Sends SIGTERM to the training, so that its job ends in this state; `step` kills it after KILL_SECONDS.

        A second call has no effect.
        """
        if self._stopping is None and self.job.active:
            self._stopping, self._kill_at = (state, reason), time.monotonic() + KILL_SECONDS
            if self._training.alive():  # the id of a dead process may belong to another process
                self._training.signal(signal.SIGTERM)

    def _is_over_time(self) -> bool:
        if self.job.started_at is None:
            return False
        age = datetime.now(UTC) - datetime.fromisoformat(self.job.started_at)
        return age.total_seconds() > self._settings.training_seconds

    def _read_events(self) -> None:
        lines, self._position = self.folder.read_events(self._position)
        self.lines += lines
        for line in lines:
            if event := RunEvent.parse(line):
                self._last_event = event
                self.job = self.job.updated_by(event)

    def _result(self) -> Job:
        if isinstance(self._last_event, FailedEvent):
            return with_published_version(self.job.ended("failed", self._last_event.error), self._settings)
        code = self._training.exit_code
        if isinstance(self._last_event, FinishedEvent) or code == 0:  # on a full disk the event may be lost
            job = self.job.ended("succeeded")
        elif self._stopping is not None:
            job = self.job.ended(*self._stopping)
        elif self.job.cancel_requested:  # an earlier supervisor stopped the training, and died
            job = self.job.ended("cancelled")
        elif isinstance(self._last_event, StoppedEvent):
            job = self.job.ended("failed", "the training process was stopped by a signal")
        else:
            job = self.job.ended("failed", f"the training process ended without a last event{_describe_exit(code)}")
        return succeed_if_live(job, self._settings)


def _describe_exit(code: int | None) -> str:
    if code is not None and code > 0:
        return f" (exit code {code}): its log may say why, unless the disk was full"
    return f"{'' if code is None else f' (signal {-code})'}: it was killed, or the machine went down"


def succeed_if_live(job: Job, settings: Settings) -> Job:
    """A job whose version is live has succeeded, even if its training was stopped before its last event."""
    job = with_published_version(job, settings)
    return job.ended("succeeded") if job.live else job


def with_published_version(job: Job, settings: Settings) -> Job:
    """The job with the version that it published, according to the store: events may be lost."""
    try:
        versions = Store(settings.store).model(job.model)
        candidates = [version for version in versions.versions() if version > (job.parent or 0)]
    except (StoreError, OSError):
        return job
    for version in reversed(candidates):
        with suppress(StoreError, OSError):  # a damaged version of another job
            manifest = versions.manifest(version)
            if manifest.training.get(JOB_KEY) == job.id:
                live = job.live
                with suppress(StoreError, OSError):
                    live = live or versions.live() == version
                changes = {"version": version, "snapshot": manifest.snapshot, "scores": dict(manifest.scores)}
                return job.model_copy(update=changes | {"live": live})
    return job
