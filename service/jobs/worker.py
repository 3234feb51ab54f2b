"""sgf-worker: takes retraining jobs from Redis and trains them here, one after another.

    sgf-worker                     with the settings of the service: SGF_REDIS_URL, SGF_STORE, SGF_DATA_ROOT ...
    sgf-worker --burst             until the queue is empty

The store must be the one that the service reads. What trains dies with its worker; the service finds out and says so.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from rq import Queue, Worker
from rq.serializers import JSONSerializer

from service import logs
from service.errors import Refusal
from service.jobs.local import FOLDER
from service.jobs.record import Job
from service.jobs.redis_ledger import RedisLedger
from service.jobs.redis_runner import QUEUE, connected
from service.jobs.supervision import Supervision
from service.jobs.training_process import PR_SET_PDEATHSIG
from service.settings import Settings, SettingsError

Result = TypeVar("Result")
LOG = logging.getLogger("service.worker")
STEP_SECONDS, BEAT_SECONDS = 0.1, 0.25
"""A beat also asks whether to stop: of the two seconds that a cancel may take, it has a quarter."""
PATIENCE_SECONDS = 600.0
"""How long the beginning or the end of a job waits for a Redis that is away."""
RETRIES = 600
"""A second apart: how long RQ itself waits for Redis."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("sgf-worker", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--burst", action="store_true", help="exit when the queue is empty")
    options = parser.parse_args(arguments)
    try:
        settings = Settings.from_env()
        if settings.redis_url is None:
            raise SettingsError("SGF_REDIS_URL is empty: there is no queue to take jobs from")
    except SettingsError as error:
        sys.stderr.write(f"sgf-worker: {error}\n")
        return 2
    logs.set_up()
    connection = connected(settings, RETRIES)
    queue = Queue(QUEUE, connection=connection, serializer=JSONSerializer)
    worker = Worker([queue], connection=connection, serializer=JSONSerializer, job_monitoring_interval=5)
    worker.work(burst=options.burst, logging_level="WARNING")
    return 0


def train(job_id: str) -> None:
    """One job, in the process that RQ forks for it."""
    _die_with_worker()
    settings = Settings.from_env()
    ledger, folder = RedisLedger(settings), settings.store / FOLDER / job_id
    job = _patiently(lambda: ledger.claim(job_id))
    if job is None:
        return
    LOG.info("job %s of %s is training", job.id, job.model)
    try:
        supervision = Supervision.start(job, folder, settings, tied=True)
    except (Refusal, OSError) as error:
        told = str(error) if isinstance(error, Refusal) else f"the training did not start: {error.strerror}"
        failed = job.ended("failed", told)
        _patiently(lambda: ledger.report(failed, [], ""))
        shutil.rmtree(folder, ignore_errors=True)
        return
    cancel, beat_at = False, 0.0
    while supervision.job.active:
        before = supervision.job
        job = supervision.step(cancel)
        if job.active and (job != before or time.monotonic() >= beat_at):
            cancel = _reported(ledger, job, supervision.lines, supervision.log_tail()) or cancel
            beat_at = time.monotonic() + BEAT_SECONDS
        time.sleep(STEP_SECONDS)
    _patiently(lambda: ledger.report(supervision.job, supervision.lines, supervision.log_tail()))
    shutil.rmtree(folder, ignore_errors=True)  # Redis has it all
    LOG.info("job %s of %s: %s", job.id, job.model, supervision.job.state)


def _reported(ledger: RedisLedger, job: Job, lines: list[str], tail: str) -> bool:
    """Redis may be away: the training goes on, and the next report has it all."""
    try:
        return ledger.report(job, lines, tail)
    except Refusal as refusal:
        LOG.warning("job %s: %s", job.id, refusal)
        return False


def _patiently(step: Callable[[], Result]) -> Result:
    """Again and again while Redis is away, within bounds: then the job is left to those who find it abandoned."""
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return step()
        except Refusal as refusal:
            if refusal.code != "jobs_unavailable" or time.monotonic() > end:
                raise
            time.sleep(1.0)


def _die_with_worker() -> None:
    """If the worker is killed we are killed, and our training with us: nothing trains that nobody answers for."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
