"""Jobs for `sgf-worker`: the service records them in Redis (`redis_ledger`), and watches what the workers report."""

from __future__ import annotations

import logging
import shutil
import time
from contextlib import suppress

from model_store import Store, StoreError
from service.jobs.local import FOLDER
from service.jobs.record import Job, State
from service.jobs.redis_ledger import RedisLedger
from service.jobs.runner import JobsUnavailable
from service.jobs.submission import Submission
from service.jobs.supervision import closed, settled
from service.jobs.training_process import FENCING_FILE, LOCK, is_held
from service.settings import Settings
from service.telemetry.metrics import Metrics

LOG = logging.getLogger("service.jobs")
ABANDONED_SECONDS = 10.0
"""A running job is abandoned if its worker sends no heartbeat for so long while Redis answers."""


class RedisRunner:
    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings, self._metrics = settings, metrics
        self.ledger = RedisLedger(settings)
        self._folder = settings.store / FOLDER
        self._silent_since: dict[str, float] = {}
        self._learned: dict[str, object] = {}
        self._counted: set[str] = set()

    def submit(self, submission: Submission, model: str, key: str | None) -> Job:
        wanted = Job.new(model, submission.content())
        job = self.ledger.add(wanted, key, submission.digest())
        if job.id == wanted.id:
            with suppress(JobsUnavailable):  # the leader counts it later
                self._count(job)
        return job

    def cancel(self, job_id: str) -> Job:
        return self.ledger.cancel(job_id)

    def advance(self) -> bool:
        jobs = self.ledger.jobs()
        training = [job for job in jobs if job.state == "running"]
        self._metrics.retrain_epoch.set(max((job.epoch for job in training), default=0))
        self._metrics.retrain_workers.set(self.ledger.workers())
        self._metrics.retrain_waiting.set(sum(job.state == "queued" for job in jobs))
        for job in jobs:
            if job.state == "running" and self._is_abandoned(job):
                job = self._given_up(job)
            elif job.given_up:
                self._learn(job)
            self._count(job)
        self._remove_leftovers(jobs)
        return False  # the worker that trains takes the frequent steps

    def _count(self, job: Job) -> None:
        """Counts each state once over all services: workers change most states, and have no metrics.

        Includes the states before the present one, which may have passed between two steps of the leader.
        """
        before: list[State] = ["queued"] if job.started_at is None else ["queued", "running"]
        for state in dict.fromkeys((*before, job.state)):
            event = f"{job.id}:{state}"
            if event not in self._counted:
                if self.ledger.first_time(event):
                    self._metrics.job_entered(job.model_copy(update={"state": state}))
                self._counted.add(event)

    def _is_abandoned(self, job: Job) -> bool:
        if self.ledger.beats(job.id):
            self._silent_since.pop(job.id, None)
            return False
        since = self._silent_since.setdefault(job.id, time.monotonic())
        return time.monotonic() - since > ABANDONED_SECONDS

    def _given_up(self, job: Job) -> Job:
        self._silent_since.pop(job.id, None)
        reason = f"no heartbeat of its worker for {ABANDONED_SECONDS:g} s: the worker was killed, or cannot reach Redis"
        ended = job.ended("failed", reason).model_copy(update={"given_up": True})
        job = self.ledger.give_up(closed(ended, self._settings))
        if job.given_up:
            LOG.error("job %s of %s is abandoned: %s", job.id, job.model, reason)
        return job

    def _learn(self, job: Job) -> None:
        """Records what an abandoned training did nevertheless: it may have passed its last check of the fencing file."""
        with suppress(StoreError, OSError):
            versions = Store(self._settings.store).model(job.model)
            seen = versions.versions(), versions.live()
            if self._learned.get(job.id) != seen:
                if (found := settled(job, self._settings)) != job:
                    self.ledger.amend(found)
                self._learned[job.id] = seen

    def _remove_leftovers(self, jobs: list[Job]) -> None:
        """Removes the folders of ended jobs whose worker was killed or given up, the fencing file first.

        Redis may have lost the record of a job that trains: its folder stays while the training holds its lock.
        """
        active = {job.id: job.active for job in jobs}
        for fencing_file in self._folder.glob(f"*/{FENCING_FILE}"):
            folder = fencing_file.parent
            if active.get(folder.name) or (folder.name not in active and is_held(folder / LOCK)):
                continue
            fencing_file.unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
