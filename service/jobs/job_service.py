"""Submits, cancels and advances jobs. The leader, a thread in one of the workers on a store, advances them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from model_store.versions.locks import exclusive_unless_held
from service.jobs.compaction import AutomaticCompaction, Overlay
from service.jobs.job import Job, State
from service.jobs.job_folder import FOLDER
from service.jobs.ledger import JobsUnavailable, Ledger
from service.jobs.sqlite_ledger import SqliteLedger
from service.jobs.submission import Submission
from service.jobs.trainer import Trainer
from service.redis_connection import Backoff
from service.settings import Settings
from service.telemetry.metrics import Metrics

LOG = logging.getLogger("service.jobs")
# The name of earlier releases: with a new name, old and new workers could each elect a leader during an upgrade.
LEADER_LOCK = "attendant.lock"
BUSY_SECONDS, IDLE_SECONDS = 0.1, 0.5
"""Time between two steps of the leader, while a training runs and otherwise."""
MEASURE_SECONDS, ELECTION_SECONDS = 0.5, 1.0
"""Time between two updates of the metrics, and between two attempts to become the leader."""


class JobService:
    """One instance per service worker. Only the leader's instance advances jobs; the others submit, cancel and read."""

    def __init__(self, settings: Settings, metrics: Metrics, overlay: Callable[[], Overlay | None] = lambda: None) -> None:
        """`overlay`: see `AutomaticCompaction`."""
        self._metrics = metrics
        self._compaction = AutomaticCompaction(settings, self.submit, overlay)
        self._counted: set[tuple[str, str]] = set()
        self._measure_at = 0.0
        self.ledger: Ledger
        self._step: Callable[[], bool]
        if settings.jobs_in_redis:
            from service.jobs.redis_ledger import RedisLedger  # here, because importing redis takes 0.1 s
            from service.jobs.worker_watch import WorkerWatch

            self.ledger = ledger = RedisLedger(settings)
            self._step = WorkerWatch(settings, ledger).step
        else:
            self.ledger = SqliteLedger(settings)
            self._step = Trainer(settings, self.ledger).step

    def submit(self, submission: Submission, model: str, key: str | None) -> Job:
        """Adds a job to the ledger, or returns the job with this idempotency key. Raises JobConflict (see `Ledger.add`)."""
        request = submission.model_dump(exclude_none=True)
        return self._count_now(self.ledger.add(Job.new(model, request), key))

    def cancel(self, job_id: str) -> Job:
        """Raises JobConflict as `Ledger.cancel` does."""
        return self._count_now(self.ledger.cancel(job_id))

    def advance(self) -> bool:
        """One step of the leader. Returns True while a training needs frequent steps."""
        busy = self._step()
        if busy and time.monotonic() < self._measure_at:
            return True
        self._measure_at = time.monotonic() + MEASURE_SECONDS
        self._compaction.step()
        jobs = self.ledger.jobs()
        self._metrics.retrain_workers.set(self.ledger.workers())
        self._metrics.retrain_waiting.set(sum(job.state == "queued" for job in jobs))
        self._metrics.retrain_epoch.set(max((job.epoch for job in jobs if job.state == "running"), default=0))
        for job in jobs:
            self._count(job)
        return busy

    def _count_now(self, job: Job) -> Job:
        with suppress(JobsUnavailable):  # the leader counts the job later
            self._count(job)
        return job

    def _count(self, job: Job) -> None:
        """Counts each state of a job exactly once over all services. The service counts for `sgf-worker`, which exports no
        metrics.

        Also counts the earlier states: a job may pass through several states between two steps of the leader.
        """
        states: tuple[State, ...] = ("queued", job.state) if job.started_at is None else ("queued", "running", job.state)
        for state in dict.fromkeys(states):
            if (job.id, state) not in self._counted:
                if self.ledger.count_once(job.id, state):
                    self._metrics.retrain_jobs.labels(state).inc()
                self._counted.add((job.id, state))


class Leader:
    """Holds a file lock in the store. The kernel releases the lock when its holder dies; then another Leader takes over."""

    def __init__(self, service: JobService, settings: Settings) -> None:
        self._service, self._lock = service, settings.store / FOLDER / LEADER_LOCK
        self._stopping = threading.Event()
        self._backoff = Backoff(1.0, 10.0)
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread. A local training continues, and the next leader adopts it."""
        self._stopping.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._lock.parent.mkdir(parents=True, exist_ok=True)
                self._lock.touch()
                with exclusive_unless_held(self._lock) as elected:
                    while elected and not self._stopping.is_set():
                        self._stopping.wait(self._advance())
            except OSError as error:
                LOG.warning("cannot lock the leader file of the jobs (%s); retrying in %g s", error, ELECTION_SECONDS)
            self._stopping.wait(ELECTION_SECONDS)

    def _advance(self) -> float:
        """Returns how long to wait before the next step."""
        try:
            busy = self._service.advance()
        except Exception as error:  # a defect or a failing disk must not end the thread
            expected = isinstance(error, JobsUnavailable)
            LOG.warning("jobs do not advance: %s; retrying in %g s", error, self._backoff.grow(), exc_info=not expected)
            return self._backoff.seconds
        self._backoff.reset()
        return BUSY_SECONDS if busy else IDLE_SECONDS
