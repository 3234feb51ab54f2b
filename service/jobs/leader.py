"""The leader: of all workers of all services on a store, the one thread that advances the jobs.

The leader holds a file lock in the store. The kernel releases the lock when its holder dies; then another thread takes over.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from model_store.versions.locks import exclusive_unless_held
from service.http.errors import Refusal
from service.jobs.runner import Runner
from service.redis_connection import Backoff

LOG = logging.getLogger("service.jobs")
BUSY_SECONDS, IDLE_SECONDS, ELECTION_SECONDS = 0.1, 0.5, 1.0
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 10.0


class Leader:
    def __init__(self, runner: Runner, lock: Path) -> None:
        self._runner, self._lock = runner, lock
        self._stopping = threading.Event()
        self._backoff = Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """A local training continues, and the next leader adopts it."""
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
                LOG.warning("cannot lock the jobs of the store (%s); retrying in %g s", error, ELECTION_SECONDS)
            self._stopping.wait(ELECTION_SECONDS)

    def _advance(self) -> float:
        """Returns how long to wait before the next step."""
        try:
            busy = self._runner.advance()
        except Exception as error:  # a defect or a failing disk must not end the thread
            expected = isinstance(error, Refusal)
            LOG.warning("jobs: %s; retrying in %g s", error, self._backoff.grow(), exc_info=not expected)
            return self._backoff.seconds
        self._backoff.reset()
        return BUSY_SECONDS if busy else IDLE_SECONDS
