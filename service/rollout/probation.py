"""The first minutes of a version that went live: if it fails, the service rolls the store back to the version before it.

Every worker judges by its own answers. Of several workers that find the same version bad, one rolls back: the store compares
and changes under its lock. A version that was reached by a roll-back is not on probation, so there is no cycle.
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
    """The roll-back that made the live version live; from the store, so all workers report the same."""
    if not history.entries or history.entries[-1].action != "rollback":
        return None
    last = history.entries[-1]
    return {"from": last.left, "to": last.version, "why": last.why, "at": last.at}


class Probation:
    """All methods but `answered` read the store, so they are called from threads, one at a time."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings, self._metrics = settings, metrics
        self.watched: int | None = None
        """The version on probation in this worker."""
        self._answers, self._failures, self._ends_at = 0, 0, 0.0

    def begin(self, versions: ModelVersions, version: int) -> None:
        """A version was taken into service here."""
        self._answers = self._failures = 0
        left = self._seconds_left(versions, version)
        self._ends_at = time.monotonic() + left
        self.watched = version if left > 0 else None

    def answered(self, failed: bool) -> None:
        """`failed`: by our own fault. A crowd, or callers who hang up, say nothing about a version."""
        self._answers += 1
        self._failures += failed

    def look(self, versions: ModelVersions) -> None:
        """Leaves the version that is watched, or stops watching it."""
        if self.watched is None:
            return
        answers, failures = self._answers, self._failures
        if time.monotonic() > self._ends_at or self._seconds_left(versions, self.watched) <= 0:
            self.watched = None  # long enough; or somebody rolled back to it meanwhile
        elif answers >= self._settings.probation_answers and failures / answers > self._settings.probation_failures:
            self._leave(versions, self.watched, f"{failures} of its first {answers} answers here failed")

    def refused(self, versions: ModelVersions, version: int, reason: str) -> None:
        """A version was proven wrong: its content is damaged, or its probes disagree."""
        if self._seconds_left(versions, version) > 0:
            self._leave(versions, version, f"it is wrong: {reason}")

    def _seconds_left(self, versions: ModelVersions, version: int) -> float:
        """Zero or less for a version that has been live for long, or that somebody rolled back to."""
        if not self._settings.auto_rollback:
            return 0.0
        try:
            events = versions.history().entries
        except (StoreError, OSError):
            return 0.0
        if not events or (events[-1].action, events[-1].version) != ("activate", version):
            return 0.0
        age = datetime.now(UTC) - datetime.fromisoformat(events[-1].at)
        return self._settings.probation_seconds - age.total_seconds()

    def _leave(self, versions: ModelVersions, bad: int, why: str) -> None:
        self.watched = None
        try:
            now = versions.rollback(only_from=bad, why=why)
        except LiveVersionChanged:
            return  # another worker or an operator has changed it already
        except (StoreError, OSError) as error:
            again = isinstance(error, StoreUnavailable | OSError)
            self.watched = bad if again else None
            then = "next attempt at the next check" if again else "activate another version"
            LOG.error("version %s is bad (%s) and stays live: the roll-back failed (%s); %s", bad, why, error, then)
            return
        self._metrics.swaps.labels("rolled_back").inc()
        LOG.error("rolled back from version %s to %s: %s", bad, now, why)
