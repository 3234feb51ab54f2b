"""Probation: the first minutes of a live version. If the version fails, the service rolls the store back.

Every worker judges a version by its own answers. If several workers find the same version bad, only the first rolls back:
the store compares and changes the live version under its lock. A version that a roll-back made live is not on probation, so
that roll-backs cannot form a cycle.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import Any

from model_store import History, LiveVersionChanged, ModelVersions, StoreError, StoreUnavailable
from service.settings import Settings
from service.telemetry.metrics import Metrics

LOG = logging.getLogger("service.rollout.probation")


def last_rollback(history: History) -> dict[str, Any] | None:
    """The roll-back that made the live version live. The store records it, so all workers report the same."""
    if not history.entries or history.entries[-1].action != "rollback":
        return None
    last = history.entries[-1]
    return {"from": last.left, "to": last.version, "why": last.why, "at": last.at}


class Probation:
    """All methods except `record_answer` read the store: they are called in threads, one at a time."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings, self._metrics = settings, metrics
        self.version: int | None = None
        """The version on probation in this worker."""
        self._answers, self._failures, self._ends_at = 0, 0, 0.0

    def begin(self, versions: ModelVersions, version: int) -> None:
        """Called when this worker starts to serve a version."""
        self._answers = self._failures = 0
        seconds = self._seconds_left(versions, version)
        self._ends_at = time.monotonic() + seconds
        self.version = version if seconds > 0 else None

    def record_answer(self, failed: bool) -> None:
        """`failed`: by a fault of the service. Refusals and disconnected clients say nothing about a version."""
        self._answers += 1
        self._failures += failed

    def check(self, versions: ModelVersions) -> None:
        """Rolls back from a version that fails, and ends a probation that is over."""
        if self.version is None:
            return
        answers, failures = self._answers, self._failures
        if time.monotonic() > self._ends_at or self._seconds_left(versions, self.version) <= 0:
            self.version = None
        elif answers >= self._settings.probation_answers and failures / answers > self._settings.probation_failures:
            self._roll_back(versions, self.version, f"{failures} of its first {answers} answers in one worker failed")

    def reject(self, versions: ModelVersions, version: int, reason: str) -> None:
        """Rolls back from a version whose content is damaged, or which fails a probe."""
        if self._seconds_left(versions, version) > 0:
            self._roll_back(versions, version, f"it is wrong: {reason}")

    def _seconds_left(self, versions: ModelVersions, version: int) -> float:
        """Zero or less if the probation of the version is over, or if a roll-back made it live."""
        if not self._settings.auto_rollback:
            return 0.0
        try:
            entries = versions.history().entries
        except (StoreError, OSError):
            return 0.0
        if not entries or (entries[-1].action, entries[-1].version) != ("activate", version):
            return 0.0
        age = datetime.now(UTC) - datetime.fromisoformat(entries[-1].at)
        return self._settings.probation_seconds - age.total_seconds()

    def _roll_back(self, versions: ModelVersions, bad: int, why: str) -> None:
        self.version = None
        try:
            live = versions.rollback(only_from=bad, why=why)
        except LiveVersionChanged:
            return  # another worker or an operator has changed the live version first
        except (StoreError, OSError) as error:
            retry = isinstance(error, StoreUnavailable | OSError)
            self.version = bad if retry else None
            action = "the next check tries again" if retry else "activate another version"
            LOG.error("version %s is bad (%s) and stays live: the roll-back failed (%s); %s", bad, why, error, action)
            return
        self._metrics.swaps.labels("rolled_back").inc()
        LOG.error("rolled back from version %s to %s: %s", bad, live, why)
