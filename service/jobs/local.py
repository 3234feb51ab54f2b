"""Jobs on this machine: the records are in SQLite, and one training runs at a time, in the order of submission."""

from __future__ import annotations

import logging
import shutil

from service.jobs.record import Job
from service.jobs.redaction import Redaction
from service.jobs.sqlite_ledger import SqliteLedger
from service.jobs.submission import Submission
from service.jobs.supervision import Supervision
from service.jobs.training_process import LOCK, is_held
from service.settings import Settings
from service.telemetry.metrics import Metrics

LOG = logging.getLogger("service.jobs")
FOLDER = ".jobs"
"""In the store; not a valid name of a model."""


class LocalRunner:
    """One instance per worker; only the leader's instance advances jobs, the others submit and read."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings, self._metrics = settings, metrics
        self._folder = settings.store / FOLDER
        self.ledger = SqliteLedger(self._folder / "jobs.sqlite", Redaction.of(settings))
        self._supervision: Supervision | None = None

    def submit(self, submission: Submission, model: str, key: str | None) -> Job:
        wanted = Job.new(model, submission.content())
        job = self.ledger.add(wanted, key, submission.digest())
        if job.id == wanted.id:
            self._metrics.job_entered(job)
        return job

    def cancel(self, job_id: str) -> Job:
        job, has_ended = self.ledger.cancel(job_id)
        if has_ended:
            self._metrics.job_entered(job)
        return job

    def advance(self) -> bool:
        self._metrics.retrain_workers.set(self.ledger.workers())
        self._metrics.retrain_waiting.set(self.ledger.waiting())
        if self._supervision is None:
            self._supervision = self._adopted() or self._started()
            return self._supervision is not None
        before = self._supervision.job
        job = self._supervision.step(self.ledger.get(before.id).cancel_requested)
        if job != before:
            self.ledger.save(job)
            self._metrics.training(job)
        if not job.active:
            self._supervision = None
            self._ended(job)
        return True

    def _adopted(self) -> Supervision | None:
        """The training of a leader that died; it may still run."""
        job = self.ledger.running()
        return None if job is None else Supervision.adopt(job, self._folder / job.id, self._settings)

    def _started(self) -> Supervision | None:
        job = self.ledger.claim()
        if job is None:
            return None
        self._metrics.job_entered(job)
        LOG.info("job %s of %s is training", job.id, job.model)
        supervision = Supervision.start(job, self._folder / job.id, self._settings)
        if supervision.job.active:
            return supervision
        self.ledger.save(supervision.job)
        self._ended(supervision.job)
        return None

    def _ended(self, job: Job) -> None:
        LOG.info("job %s of %s: %s%s", job.id, job.model, job.state, f" ({job.error})" if job.error else "")
        self._metrics.job_entered(job)
        self._metrics.retrain_epoch.set(0)
        known = {job.id for job in self.ledger.jobs()}
        for path in self._folder.iterdir():
            if path.is_dir() and path.name not in known and not is_held(path / LOCK):  # locked: of a worker
                shutil.rmtree(path, ignore_errors=True)
