"""The one thread, of all workers of all services on a store, that looks after the jobs.

It is whoever holds a lock in the store, which the kernel gives back when its holder dies: then another one takes over.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from model_store.locks import exclusive_unless_held
from service.errors import Refusal
from service.jobs.runner import Runner

LOG = logging.getLogger("service.jobs")
BUSY_SECONDS, IDLE_SECONDS, TURN_SECONDS = 0.1, 0.5, 1.0


class Attendant:
    def __init__(self, runner: Runner, lock: Path) -> None:
        self._runner, self._lock = runner, lock
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Whatever trains goes on, and is adopted by the next one."""
        self._stopping.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._lock.parent.mkdir(parents=True, exist_ok=True)
                self._lock.touch()
                with exclusive_unless_held(self._lock) as ours:
                    while ours and not self._stopping.is_set():
                        self._stopping.wait(BUSY_SECONDS if self._look() else IDLE_SECONDS)
            except OSError as error:
                LOG.warning("nobody can look after the jobs: %s", error)
            self._stopping.wait(TURN_SECONDS)

    def _look(self) -> bool:
        try:
            return self._runner.attend()
        except Refusal as refusal:
            LOG.warning("jobs: %s", refusal)
        except Exception:  # the next look may find better times
            LOG.exception("looking after the jobs failed")
        return False
