"""What the admin pages and the leader use of the two job runners and their ledgers, and the errors of both."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from service.http.errors import Refusal
from service.jobs.record import Job
from service.jobs.submission import Submission


class Place(NamedTuple):
    """Where a reader of events is: behind so many events, and so many bytes of the file (0 in Redis)."""

    number: int = 0
    byte: int = 0


class Line(NamedTuple):
    place: Place
    """Behind this line."""
    text: str
    """One event of the training, as JSON."""


class Ledger(Protocol):
    """The job records. Every method may block, and raises JobsUnavailable if the records are unavailable."""

    def get(self, job_id: str) -> Job: ...

    def jobs(self) -> list[Job]:
        """All recorded jobs, newest first."""

    def workers(self) -> int:
        """How many processes are connected that can train jobs."""

    def events(self, job_id: str, after: Place) -> list[Line]:
        """The events behind a place; reads only those."""

    def log_tail(self, job_id: str) -> str: ...


class Runner(Protocol):
    """Changes jobs. Every method may block, and raises JobsUnavailable if the records are unavailable."""

    @property
    def ledger(self) -> Ledger: ...

    def submit(self, submission: Submission, model: str, key: str | None) -> Job:
        """A new job, or the one submitted with this key before. Refuses (conflict) while the model has an active job."""

    def cancel(self, job_id: str) -> Job:
        """Cancels a queued job at once, a running one within seconds. Refuses (conflict) a job that has ended otherwise."""

    def advance(self) -> bool:
        """One step of the leader, in one process at a time. Returns True while a training needs frequent steps."""


class JobsUnavailable(Refusal):  # like its base
    """The job records cannot be read or written now."""

    def __init__(self, message: str) -> None:
        super().__init__("jobs_unavailable", message)


def unknown_job(job_id: str) -> Refusal:
    return Refusal("unknown_job", f"there is no job {job_id!r}")


def already_running(model: str, job_id: str) -> Refusal:
    return Refusal("conflict", f"job {job_id} of {model} is not done yet; a model has one job at a time", job=job_id)


def other_request(key: str, job_id: str) -> Refusal:
    return Refusal("conflict", f"the key {key!r} was used for another request", job=job_id)


def has_ended(job: Job) -> Refusal:
    return Refusal("conflict", f"job {job.id} has {job.state} already", job=job.id, state=job.state)
