"""Trains the jobs of a ledger, one at a time. The leader uses it with SQLite, `sgf-worker` with Redis."""

from __future__ import annotations

import logging
import shutil
import time

from service.jobs.job_folder import FOLDER, JobFolder
from service.jobs.ledger import JobsUnavailable, Ledger
from service.jobs.supervision import Supervision
from service.jobs.training_process import TrainingProcess
from service.settings import Settings

LOG = logging.getLogger("service.jobs")
REPORT_SECONDS = 0.25  # a report also learns of a cancel, which must take less than 2 s in all
RETRY_SECONDS = 2.0  # the service abandons the job of a worker after 10 s without a report


class Trainer:
    """Call `step` about every 0.1 s, always from the same thread: a tied training dies with the thread that started it."""

    def __init__(self, settings: Settings, ledger: Ledger, tied: bool = False) -> None:
        """`tied`: trainings die with this process. Otherwise they outlive it, and the next Trainer adopts them."""
        self._settings, self._ledger, self._tied = settings, ledger, tied
        self._supervision: Supervision | None = None
        self._stopping, self._adopts = False, not tied
        self._report_at = 0.0

    def step(self) -> bool:
        """Returns False if no job runs or waits. Raises JobsUnavailable, but never while a training runs."""
        supervision = self._supervision = self._supervision or self._next_supervision()
        if supervision is None:
            return False
        job = supervision.step()
        if time.monotonic() >= self._report_at:
            reported = self._report(supervision)
            if not job.active and (reported or self._stopping):
                self._supervision = None
                self._finish(supervision)
        return True

    def stop(self, reason: str) -> None:
        """Stops the training; its job fails for this reason. Call `step` until it returns False."""
        self._stopping = True
        if self._supervision is not None:
            self._supervision.stop("failed", reason)

    def _next_supervision(self) -> Supervision | None:
        for job in self._ledger.jobs() if self._adopts else []:
            if job.state == "running":  # the earlier leader died; the training may be alive
                return Supervision(job, TrainingProcess(JobFolder(self._settings, job.id)), self._settings)
        self._adopts = False  # reading all jobs in every idle step would cost milliseconds
        claimed = None if self._stopping else self._ledger.claim()
        if claimed is None:
            return None
        self._adopts = not self._tied  # if the start raises, the next step adopts this job
        LOG.info("job %s of %s is training", claimed.id, claimed.model)
        return Supervision.start(claimed, self._settings, self._tied)

    def _report(self, supervision: Supervision) -> bool:
        """Returns False if the ledger is unavailable. Each report is complete, so a missing one does no harm."""
        job = supervision.job
        try:
            if self._ledger.report(job, supervision.lines, supervision.folder.read_log_tail()):
                supervision.stop("cancelled")
        except JobsUnavailable as error:
            LOG.warning("job %s is not reported: %s; retrying in %g s", job.id, error, RETRY_SECONDS)
            self._report_at = time.monotonic() + RETRY_SECONDS
            return False
        self._report_at = time.monotonic() + REPORT_SECONDS
        return True

    def _finish(self, supervision: Supervision) -> None:
        job = supervision.job
        LOG.info("job %s of %s: %s%s", job.id, job.model, job.state, f" ({job.error})" if job.error else "")
        if self._tied:
            shutil.rmtree(supervision.folder.path, ignore_errors=True)  # its content is in the ledger
            return
        recorded = {job.id for job in self._ledger.jobs()}
        for path in (self._settings.store / FOLDER).iterdir():
            if path.is_dir() and path.name not in recorded and not JobFolder(self._settings, path.name).is_locked():
                shutil.rmtree(path, ignore_errors=True)  # its record was pruned; a locked folder has a living training
