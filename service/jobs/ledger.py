"""The interface of the ledgers (`sqlite_ledger`, `redis_ledger`), the code that they share, and the errors of jobs.

JobError: `service.http.errors` maps its subclasses to responses, and its `details` to details of the response
- InvalidSubmission: the request to retrain cannot be run
- UnknownJob: there is no job with this id
- JobConflict: the request conflicts with another job or with the state of this job
- JobsUnavailable: the records cannot be read or written now
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from service.jobs.job import Job, State

KEPT_JOBS = 200
"""The ledger keeps the records of this many jobs."""


class JobError(Exception):
    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.details = details


class InvalidSubmission(JobError): ...  # noqa: N818  # no suffix Error, as in model_store.errors


class UnknownJob(JobError): ...  # noqa: N818


class JobConflict(JobError): ...  # noqa: N818


class JobsUnavailable(JobError): ...  # noqa: N818


class Ledger(ABC):
    """Job records. Methods may block. They raise UnknownJob if there is no job with this id, and JobsUnavailable if the
    records cannot be read or written.
    """

    @abstractmethod
    def add(self, job: Job, key: str | None) -> Job:
        """Adds a job. If a job with this idempotency key and the same request exists, returns that job instead.

        Raises JobConflict if the key was used for another request, or if the model has an active job.
        """

    @abstractmethod
    def get(self, job_id: str) -> Job: ...

    @abstractmethod
    def jobs(self) -> list[Job]:
        """Returns all jobs, newest first."""

    @abstractmethod
    def update(self, job_id: str, change: Callable[[Job], Job]) -> Job:
        """Changes a record atomically. `change` may be called several times (the transaction is retried) and may raise; then
        nothing is written.
        """

    @abstractmethod
    def report(self, job: Job, lines: list[str], log_tail: str) -> bool:
        """Writes the state of a running job and all its events so far. Returns True if its training must stop."""

    @abstractmethod
    def workers(self) -> int:
        """The number of connected processes that can train."""

    @abstractmethod
    def events(self, job_id: str, position: int) -> tuple[list[str], int]:
        """The events after a position, which is 0 before the first event, and the position after them."""

    @abstractmethod
    def log_tail(self, job_id: str) -> str: ...

    @abstractmethod
    def count_once(self, job_id: str, state: State) -> bool:
        """Returns True exactly once per job and state, over all processes."""

    def claim(self) -> Job | None:
        """Starts the job that has waited longest. None if no job waits."""
        for waiting in reversed(self.jobs()):
            if waiting.state == "queued":
                with suppress(JobConflict, UnknownJob):  # another worker was faster, or the job was cancelled
                    return self.update(waiting.id, _start)
        return None

    def cancel(self, job_id: str) -> Job:
        """Ends a queued job. Requests the end of a running one. Raises JobConflict if the job has succeeded or failed; a
        cancelled job is returned unchanged.
        """
        return self.update(job_id, _cancel)


def _start(job: Job) -> Job:
    if job.state != "queued":
        raise JobConflict(f"job {job.id} is not queued but {job.state}")
    return job.started()


def _cancel(job: Job) -> Job:
    if job.state == "running":
        return job.model_copy(update={"cancel_requested": True})
    if job.state == "queued":
        return job.ended("cancelled")
    if job.state != "cancelled":
        raise JobConflict(f"job {job.id} has {job.state} already", job=job.id, state=job.state)
    return job


def require_job(job: Job | None, job_id: str) -> Job:
    if job is None:
        raise UnknownJob(f"there is no job {job_id!r}")
    return job


def check_addition(job: Job, key: str | None, same_key: Job | None, active: Job | None) -> Job | None:
    """Returns the existing job that `Ledger.add` must return, or None. Raises JobConflict if the key was used for another
    request, or if another job is active.
    """
    if same_key is not None and same_key.request != job.request:
        raise JobConflict(f"the key {key!r} was used for another request", job=same_key.id)
    if same_key is None and active is not None and active.active:
        rule = "a model has one job at a time: wait for its end, or cancel it"
        raise JobConflict(f"job {active.id} of {job.model} is {active.state}; {rule}", job=active.id)
    return same_key
