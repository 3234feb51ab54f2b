"""Jobs for `sgf-worker`, through Redis: RQ hands them out, the record and the progress are ours (`redis_ledger`)."""

from __future__ import annotations

import logging
import time

from redis import Redis, RedisError
from rq import Queue
from rq.exceptions import NoSuchJobError
from rq.job import Job as RqJob
from rq.job import JobStatus
from rq.serializers import JSONSerializer

from service.errors import Refusal
from service.jobs.record import Job
from service.jobs.redis_ledger import TIMEOUT_SECONDS, RedisLedger
from service.jobs.runner import Line
from service.jobs.submission import Submission
from service.jobs.supervision import settled
from service.metrics import Metrics
from service.settings import Settings

LOG = logging.getLogger("service.jobs")
QUEUE = "sgf"
TASK = "service.jobs.worker.train"
SPARE_SECONDS = 600
"""Beyond the limit of a training, which our own supervision keeps: RQ's limit is for a supervision that hangs."""
FAILURE_SECONDS = 3600
ABANDONED_SECONDS = 10.0
"""How long a running job's trainer may be silent while Redis answers."""


class RedisRunner:
    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings, self._metrics = settings, metrics
        self._ledger = RedisLedger(settings)
        self._queue = Queue(QUEUE, connection=connected(settings, retries=0), serializer=JSONSerializer)
        self._silent_since: dict[str, float] = {}
        self._counted: set[str] = set()

    def submit(self, submission: Submission, model: str, key: str | None) -> Job:
        wanted = Job.new(model, submission.asked())
        job = self._ledger.add(wanted, key, submission.digest())
        if job.id == wanted.id:
            self._hand_out(job)
        return job

    def job(self, job_id: str) -> Job:
        return self._ledger.get(job_id)

    def jobs(self) -> list[Job]:
        return self._ledger.jobs()

    def cancel(self, job_id: str) -> Job:
        return self._ledger.cancel(job_id)

    def events(self, job_id: str, after: int) -> list[Line]:
        return self._ledger.events(job_id, after)

    def log_tail(self, job_id: str) -> str:
        return self._ledger.log_tail(job_id)

    def attend(self) -> bool:
        jobs = self._ledger.jobs()
        self._metrics.retrain_waiting.set(sum(job.state == "queued" for job in jobs))
        for job in jobs:
            if job.state == "queued" and not self._is_handed_out(job):
                self._hand_out(job)  # whoever submitted it died in between, or RQ's part of Redis was lost
            elif job.state == "running":
                self._metrics.training(job)
                job = self._given_up(job) if self._is_abandoned(job) else job
            self._count(job)
        return False  # nothing here is in a hurry: the worker that trains looks after the job

    def _count(self, job: Job) -> None:
        """Once over all services: the change was made by a worker, whose metrics nobody reads."""
        what = f"{job.id}:{job.state}"
        if what not in self._counted:
            if self._ledger.first_time(what):
                self._metrics.job_entered(job)
            self._counted.add(what)

    def _hand_out(self, job: Job) -> None:
        try:
            self._queue.enqueue_call(
                TASK,
                args=(job.id,),
                job_id=job.id,
                timeout=round(self._settings.training_seconds) + SPARE_SECONDS,
                result_ttl=0,
                failure_ttl=FAILURE_SECONDS,
            )
        except RedisError as error:
            LOG.warning("job %s waits for Redis (%s)", job.id, type(error).__name__)  # `attend` hands it out later

    def _is_handed_out(self, job: Job) -> bool:
        """A job that RQ calls failed while it waits here is one whose worker was killed before it could begin."""
        try:
            found = RqJob.fetch(job.id, connection=self._queue.connection, serializer=JSONSerializer)
            return found.get_status() != JobStatus.FAILED
        except NoSuchJobError:
            return False
        except RedisError as error:
            raise Refusal("jobs_unavailable", "Redis, which keeps the jobs, does not answer") from error

    def _is_abandoned(self, job: Job) -> bool:
        if self._ledger.beats(job.id):
            self._silent_since.pop(job.id, None)
            return False
        since = self._silent_since.setdefault(job.id, time.monotonic())
        return time.monotonic() - since > ABANDONED_SECONDS

    def _given_up(self, job: Job) -> Job:
        self._silent_since.pop(job.id, None)
        told = f"nothing was heard of its worker for {ABANDONED_SECONDS:g} s: it was killed, or cannot reach Redis"
        job = self._ledger.give_up(settled(job.ended("failed", told), self._settings))
        LOG.error("job %s of %s is abandoned: %s", job.id, job.model, told)
        return job


def connected(settings: Settings, retries: int) -> Redis:
    """A connection as RQ wants it, that tries again so many times, a second apart."""
    from redis.backoff import ConstantBackoff
    from redis.retry import Retry

    return Redis.from_url(
        settings.redis_url or "redis://",
        socket_connect_timeout=TIMEOUT_SECONDS,
        retry=Retry(ConstantBackoff(1.0), retries),
        health_check_interval=30,
    )
