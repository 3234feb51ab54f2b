"""sgf-worker: takes retraining jobs from Redis and trains them here, one after another.

    sgf-worker                     with the settings of the service: SGF_REDIS_URL, SGF_STORE, SGF_DATA_ROOT ...
    sgf-worker --burst             exits when no job waits

The worker and the service must share the store. A training dies with its worker: SIGTERM and SIGINT stop it and report the
job as failed; after a kill the service notices the missing heartbeat and reports the job as failed.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from service.jobs.ledger import JobsUnavailable
from service.jobs.redis_ledger import RedisLedger
from service.jobs.trainer import Trainer
from service.redis_connection import Backoff
from service.settings import Settings, SettingsError
from service.telemetry import logs

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
        """A signal handler. It only sets a variable: the thread may hold any lock."""
        self._stopped_by = signal.Signals(number).name

    def run(self, burst: bool = False) -> None:
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
        """In short sleeps, because a signal does not end a sleep."""
        end = time.monotonic() + seconds
        time.sleep(STEP_SECONDS)
        while self._stopped_by is None and time.monotonic() < end:
            time.sleep(STEP_SECONDS)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("sgf-worker", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--burst", action="store_true", help="exit when no job waits")
    options = parser.parse_args(arguments)
    try:
        settings = Settings.from_env()
        if settings.redis_url is None:
            raise SettingsError("SGF_REDIS_URL is empty: there is no Redis to take jobs from")
    except SettingsError as error:
        sys.stderr.write(f"sgf-worker: {error}\n")
        return 2
    logs.set_up()
    worker = Worker(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, worker.stop)
    worker.run(options.burst)
    return 0


if __name__ == "__main__":
    sys.exit(main())
