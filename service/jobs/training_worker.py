"""A training worker: claims jobs from Redis and trains them, one after another, until a signal stops it."""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from contextlib import suppress

from service.jobs.ledger import JobsUnavailable
from service.jobs.redis_ledger import RedisLedger
from service.jobs.trainer import Trainer
from service.redis_connection import Backoff
from service.settings import Settings

LOG = logging.getLogger("service.worker")
STEP_SECONDS, POLL_SECONDS = 0.1, 1.0


class Worker:
    def __init__(self, settings: Settings) -> None:
        self._name = f"{socket.gethostname()}:{os.getpid()}"
        self._ledger = RedisLedger(settings, self._name)
        self._trainer = Trainer(settings, self._ledger, tied=True)
        self._backoff = Backoff(1.0, 30.0)
        self._stopped_by: str | None = None

    def stop(self, number: int, _frame: object = None) -> None:
        """A signal handler. It only sets a variable: the interrupted thread may hold any lock."""
        self._stopped_by = signal.Signals(number).name

    def run(self, burst: bool = False) -> None:
        """Trains until a signal arrives; with `burst`, until no job waits."""
        while True:
            if self._stopped_by is not None:
                self._trainer.stop(f"its worker was stopped ({self._stopped_by})")
            try:
                busy = self._trainer.step()
            except JobsUnavailable as error:
                LOG.warning("%s; retrying in %g s", error, self._backoff.grow())
                self._pause(self._backoff.seconds)
                continue
            self._backoff.reset()
            if not busy and (burst or self._stopped_by):
                break
            self._pause(STEP_SECONDS if busy else POLL_SECONDS)
        with suppress(JobsUnavailable):  # then the announcement expires
            self._ledger.withdraw(self._name)

    def _pause(self, seconds: float) -> None:
        """Sleeps in short steps: Python continues a sleep after a signal handler has run."""
        end = time.monotonic() + seconds
        time.sleep(STEP_SECONDS)
        while self._stopped_by is None and time.monotonic() < end:
            time.sleep(STEP_SECONDS)
