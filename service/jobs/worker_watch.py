"""The service's watch over jobs that `sgf-worker` processes train: it abandons the jobs of lost workers."""

from __future__ import annotations

import logging
import shutil
import time
from contextlib import suppress

from model_store import Store, StoreError
from service.jobs.job import Job
from service.jobs.job_folder import FENCING_FILE, FOLDER, JobFolder
from service.jobs.redis_ledger import RedisLedger
from service.jobs.supervision import succeed_if_live, with_published_version
from service.settings import Settings

LOG = logging.getLogger("service.jobs")
ABANDONED_SECONDS = 10.0
"""A job whose worker is silent for longer than this is abandoned."""


class WorkerWatch:
    def __init__(self, settings: Settings, ledger: RedisLedger) -> None:
        self._settings, self._ledger = settings, ledger
        self._silent_since: dict[str, float] = {}
        self._store_states: dict[str, object] = {}

    def step(self) -> bool:
        """Always returns False: the training workers supervise their trainings, so no frequent steps are needed here."""
        jobs, now = self._ledger.jobs(), time.monotonic()
        silent = [job for job in jobs if job.state == "running" and not self._ledger.has_heartbeat(job.id)]
        # Counted from when this process noticed the silence: heartbeats also expire while Redis cannot be reached.
        self._silent_since = {job.id: self._silent_since.get(job.id, now) for job in silent}
        for job in silent:
            if now - self._silent_since[job.id] > ABANDONED_SECONDS:
                self._abandon(job)
        for job in jobs:
            if job.given_up:
                self._amend(job)
        self._remove_leftovers(jobs)
        return False

    def _abandon(self, job: Job) -> None:
        reason = f"no heartbeat of its worker for {ABANDONED_SECONDS:g} s: the worker was killed, or cannot reach Redis"
        failed = job.ended("failed", reason).model_copy(update={"given_up": True})
        if self._ledger.abandon(succeed_if_live(failed, self._settings)).given_up:
            LOG.error("job %s of %s is abandoned: %s", job.id, job.model, reason)

    def _amend(self, job: Job) -> None:
        """Records what an abandoned training published: it may have passed its last check of the fencing file."""
        with suppress(StoreError, OSError):
            versions = Store(self._settings.store).model(job.model)
            store_state = versions.versions(), versions.live()
            if self._store_states.get(job.id) != store_state:
                self._ledger.update(job.id, lambda stored: with_published_version(stored, self._settings))
                self._store_states[job.id] = store_state

    def _remove_leftovers(self, jobs: list[Job]) -> None:
        """Removes the folders of ended jobs whose worker was killed or is lost, the fencing file first.

        Redis may have lost the record of a running job: its folder stays while its training holds the lock.
        """
        active = {job.id: job.active for job in jobs}
        for fencing_file in (self._settings.store / FOLDER).glob(f"*/{FENCING_FILE}"):
            folder = JobFolder(self._settings, fencing_file.parent.name)
            if not (active[folder.job_id] if folder.job_id in active else folder.is_locked()):
                fencing_file.unlink(missing_ok=True)
                shutil.rmtree(folder.path, ignore_errors=True)
