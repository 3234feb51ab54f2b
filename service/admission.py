"""Admit or refuse, before a request costs anything: a bound on what is in hand, and on how late the worker runs.

The event loop answers most requests on the spot, so a queue would form where nobody sees it: in the sockets. Heartbeats that
come late tell how long it is.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from service.errors import Refusal
from service.metrics import Metrics
from service.settings import Settings

BEAT_SECONDS = 0.01
LATE_BEATS = 3
"""In a row: one late beat may be the machine's, several are ours."""
RECEIVING = 4
"""Requests whose bodies are still coming, for each that may be in hand."""


class Admission:
    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._limit, self._max_lag = settings.max_inflight, settings.max_lag_seconds
        self._metrics = metrics
        self._inflight, self._bodies = 0, 0
        self._lags: deque[float] = deque([0.0] * LATE_BEATS, maxlen=LATE_BEATS)
        self._beat_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._expect_beat()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """While a body comes, which may take its time: it holds no place among those in hand. Raises Refusal (429)."""
        self._check()
        if self._bodies >= RECEIVING * self._limit:
            raise self._shed("bodies")
        self._bodies += 1
        try:
            yield
        finally:
            self._bodies -= 1

    @contextmanager
    def answering(self) -> Iterator[None]:
        """While an answer is made. Raises Refusal (429)."""
        self._check()
        self._inflight += 1
        try:
            yield
        finally:
            self._inflight -= 1

    def beat(self, late: float) -> None:
        """The heartbeat came this late."""
        self._lags.append(late)
        self._metrics.queue_depth.set(self._inflight)

    def _check(self) -> None:
        if self._inflight >= self._limit:
            raise self._shed("inflight")
        if min(self._lags) > self._max_lag:
            raise self._shed("lag")

    def _shed(self, reason: str) -> Refusal:
        self._metrics.shed.labels(reason).inc()
        return Refusal("overloaded", "too many requests at once; come back in a moment")

    def _expect_beat(self) -> None:
        self._beat_at = time.monotonic() + BEAT_SECONDS
        self._timer = asyncio.get_running_loop().call_later(BEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        self.beat(time.monotonic() - self._beat_at)
        self._expect_beat()
