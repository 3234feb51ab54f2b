"""sgf-worker: takes retraining jobs from Redis and trains them here, one after another.

    sgf-worker                     with the settings of the service: SGF_REDIS_URL, SGF_STORE, SGF_DATA_ROOT ...
    sgf-worker --burst             exits when no job waits

The worker and the service must share the store. A training dies with its worker: SIGTERM and SIGINT stop it and report the
job as failed; after a kill the service finds out and reports it.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from service.jobs.local import FOLDER
from service.jobs.record import Job
from service.jobs.redis_ledger import RedisLedger
from service.jobs.runner import JobsUnavailable
from service.jobs.supervision import Supervision
from service.redis_connection import Backoff
from service.settings import Settings, SettingsError
from service.telemetry import logs

LOG = logging.getLogger("service.worker")
POLL_SECONDS = 1.0
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 30.0
LONGEST_SILENCE_SECONDS = 4.0
"""Between two attempts to report a running job, which the service abandons after 10 s without a heartbeat."""
STEP_SECONDS, BEAT_SECONDS = 0.1, 0.25
"""A heartbeat also reads whether to cancel, which may take two seconds in all."""
PATIENCE_SECONDS = 600.0
"""How long the worker tries to report the end of a job while Redis is unavailable."""


class Worker:
    """Has one thread: a training is tied to the thread that starts it."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._ledger = settings, RedisLedger(settings)
        self._backoff = Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        self._name = f"{socket.gethostname()}:{os.getpid()}"
        self._stopped_by: str | None = None

    def stop(self, number: int, _frame: object = None) -> None:
        """A signal handler. It only sets a variable: the thread may hold any lock."""
        self._stopped_by = signal.Signals(number).name

    def run(self, burst: bool = False) -> None:
        while self._stopped_by is None:
            try:
                self._ledger.announce(self._name)
                job = self._ledger.claim()
            except JobsUnavailable as error:
                LOG.warning("%s; retrying in %g s", error, self._backoff.grow())
                self._pause(self._backoff.seconds)
                continue
            self._backoff.reset()
            if job is not None:
                self._train(job)
            elif burst:
                break
            else:
                self._pause(POLL_SECONDS)
        with suppress(JobsUnavailable):  # then the announcement expires
            self._ledger.withdraw(self._name)

    def _train(self, job: Job) -> None:
        folder = self._settings.store / FOLDER / job.id
        LOG.info("job %s of %s is training", job.id, job.model)
        supervision = Supervision.start(job, folder, self._settings, tied=True)
        self._supervise(supervision)
        shutil.rmtree(folder, ignore_errors=True)  # its content is in Redis
        ended = supervision.job
        LOG.info("job %s of %s: %s%s", job.id, job.model, ended.state, f" ({ended.error})" if ended.error else "")

    def _supervise(self, supervision: Supervision) -> None:
        """Until the end of the training is reported. Redis may be unavailable meanwhile: every report is complete."""
        cancel, report_at, give_up_at, backoff = False, 0.0, 0.0, Backoff(FIRST_RETRY_SECONDS, LONGEST_SILENCE_SECONDS)
        while True:
            if self._stopped_by is not None:
                supervision.stop("failed", f"its worker was stopped ({self._stopped_by})")
            if (job := supervision.step(cancel)).active:
                give_up_at = time.monotonic() + PATIENCE_SECONDS
            if time.monotonic() >= report_at:
                try:
                    self._ledger.announce(self._name)
                    cancel = self._ledger.report(job, supervision.lines, supervision.log_tail()) or cancel
                    backoff.reset()
                except JobsUnavailable as error:
                    LOG.warning("job %s is not reported: %s; retrying in %g s", job.id, error, backoff.grow())
                if not job.active and (not backoff.seconds or self._stopped_by or time.monotonic() > give_up_at):
                    return  # if its end is not reported, the service abandons the job
                report_at = time.monotonic() + max(BEAT_SECONDS, backoff.seconds)
            time.sleep(STEP_SECONDS)

    def _pause(self, seconds: float) -> None:
        """In short sleeps, because a signal does not end a sleep."""
        end = time.monotonic() + seconds
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
