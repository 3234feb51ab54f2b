"""Where jobs are kept and trained: the interface that the admin pages and the leader use."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from service.errors import Refusal
from service.jobs.record import Job
from service.jobs.submission import Submission


class Line(NamedTuple):
    number: int
    """From 1, so that a reader can say what it has seen."""
    text: str
    """One event of the training, as JSON."""


class Runner(Protocol):
    """Every method may block, so call them from a thread. All raise Refusal: `jobs_unavailable` where records are away."""

    def submit(self, submission: Submission, model: str, key: str | None) -> Job:
        """A new job, or the one that was submitted with this key before. Refuses (conflict) while the model has one."""

    def job(self, job_id: str) -> Job: ...

    def jobs(self) -> list[Job]:
        """The newest first."""

    def cancel(self, job_id: str) -> Job:
        """Of a queued job at once, of a running one soon. Refuses (conflict) a job that has ended otherwise."""

    def events(self, job_id: str, after: int) -> list[Line]: ...

    def log_tail(self, job_id: str) -> str: ...

    def advance(self) -> bool:
        """One look after the jobs; called again and again, by one process at a time. True while there is something to do."""


def unknown_job(job_id: str) -> Refusal:
    return Refusal("unknown_job", f"there is no job {job_id!r}")


def already_running(model: str, job_id: str) -> Refusal:
    return Refusal("conflict", f"job {job_id} of {model} is not done yet: one at a time", job=job_id)


def other_request(key: str, job_id: str) -> Refusal:
    return Refusal("conflict", f"the key {key!r} was used for another request", job=job_id)


def has_ended(job: Job) -> Refusal:
    return Refusal("conflict", f"job {job.id} has {job.state} already", job=job.id, state=job.state)
