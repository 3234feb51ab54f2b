"""Jobs for `sgf-worker`, through Redis: RQ hands them out, the record and the progress are ours (`redis_ledger`)."""

from __future__ import annotations

import logging
import shutil
import time
from contextlib import suppress

from redis import Redis, RedisError
from rq import Queue
from rq.exceptions import NoSuchJobError
from rq.job import Job as RqJob
from rq.job import JobStatus
from rq.serializers import JSONSerializer

from model_store import Store, StoreError
from service.errors import Refusal
from service.jobs.local import FOLDER
from service.jobs.record import Job, State
from service.jobs.redis_ledger import TIMEOUT_SECONDS, RedisLedger
from service.jobs.runner import Line
from service.jobs.submission import Submission
from service.jobs.supervision import closed, settled
from service.jobs.training_process import FENCING_FILE, LOCK, is_held
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
        self._folder = settings.store / FOLDER
        self._silent_since: dict[str, float] = {}
        self._learned: dict[str, object] = {}
        self._counted: set[str] = set()

    def submit(self, submission: Submission, model: str, key: str | None) -> Job:
        wanted = Job.new(model, submission.asked())
        job = self._ledger.add(wanted, key, submission.digest())
        if job.id == wanted.id:
            with suppress(Refusal):  # Redis fell silent: `advance` counts it later
                self._count(job)
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

    def advance(self) -> bool:
        jobs = self._ledger.jobs()
        training = [job for job in jobs if job.state == "running"]
        self._metrics.retrain_epoch.set(max((job.epoch for job in training), default=0))
        self._metrics.retrain_waiting.set(sum(job.state == "queued" for job in jobs))
        for job in jobs:
            if job.state == "queued" and not self._is_handed_out(job):
                self._hand_out(job)  # whoever submitted it died in between, or RQ's part of Redis was lost
            elif job.state == "running" and self._is_abandoned(job):
                job = self._given_up(job)
            elif job.given_up:
                self._learn(job)
            self._count(job)
        self._clear_away(jobs)
        return False  # nothing here is in a hurry: the worker that trains looks after the job

    def _count(self, job: Job) -> None:
        """Once over all services: most changes are made by a worker, whose metrics nobody reads.

        With the states before it, which may have passed between two looks.
        """
        before: list[State] = ["queued"] if job.started_at is None else ["queued", "running"]
        for state in dict.fromkeys((*before, job.state)):
            what = f"{job.id}:{state}"
            if what not in self._counted:
                if self._ledger.first_time(what):
                    self._metrics.job_entered(job.model_copy(update={"state": state}))
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
            LOG.warning("job %s waits for Redis (%s)", job.id, type(error).__name__)  # `advance` hands it out later

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
        ended = job.ended("failed", told).model_copy(update={"given_up": True})
        job = self._ledger.give_up(closed(ended, self._settings))
        LOG.error("job %s of %s is abandoned: %s", job.id, job.model, told)
        return job

    def _learn(self, job: Job) -> None:
        """What a training did after it was given up: it may have been past the point where it asks for its permit."""
        with suppress(StoreError, OSError):
            versions = Store(self._settings.store).model(job.model)
            seen = versions.versions(), versions.live()
            if self._learned.get(job.id) != seen:
                if (found := settled(job, self._settings)) != job:
                    self._ledger.amend(found)
                self._learned[job.id] = seen

    def _clear_away(self, jobs: list[Job]) -> None:
        """What a worker that was killed, or given up, has left of a job that has ended: its permit first.

        A job that Redis does not know may be one that it has forgotten: while it trains it is left alone.
        """
        active = {job.id: job.active for job in jobs}
        for permit in self._folder.glob(f"*/{FENCING_FILE}"):
            folder = permit.parent
            if active.get(folder.name) or (folder.name not in active and is_held(folder / LOCK)):
                continue
            permit.unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)


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
