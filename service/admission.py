"""Admit or refuse, before a request costs anything: a bound on what is in hand, and on how late the worker runs.

The event loop answers most requests on the spot, so a queue would form where nobody sees it: in the sockets. A heartbeat
that comes late tells how long it is.
"""

from __future__ import annotations

import asyncio
import time

from service.errors import Refusal
from service.metrics import Metrics
from service.settings import Settings

BEAT_SECONDS = 0.01


class Admission:
    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._limit, self._max_lag = settings.max_inflight, settings.max_lag_seconds
        self._metrics = metrics
        self._inflight, self._lag, self._beat_at = 0, 0.0, 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._expect_beat()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def enter(self) -> None:
        """Raises Refusal (429) where there is too much to do; else `leave` must follow."""
        reason = "inflight" if self._inflight >= self._limit else "lag" if self._lag > self._max_lag else None
        if reason is not None:
            self._metrics.shed.labels(reason).inc()
            raise Refusal("overloaded", "too many requests at once; come back in a moment")
        self._inflight += 1

    def leave(self) -> None:
        self._inflight -= 1

    def _expect_beat(self) -> None:
        self._beat_at = time.monotonic() + BEAT_SECONDS
        self._timer = asyncio.get_running_loop().call_later(BEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        self._lag = time.monotonic() - self._beat_at
        self._metrics.queue_depth.set(self._inflight)
        self._expect_beat()
