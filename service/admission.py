"""Admit or refuse, before a request costs anything.

A worker answers most requests on the spot, so a queue forms where nobody sees it: in the sockets. A heart that beats late
tells how long it is. A crowd that comes once is let in; while a worker runs late for longer, it takes fewer at a time, so
that those it takes are answered soon, until nobody had to be refused for a while.
"""

from __future__ import annotations

import asyncio
import time
from types import TracebackType

from service.errors import Refusal
from service.metrics import Metrics
from service.settings import Settings

LATE_BEATS = 5
"""In a row: one late beat may be the machine's, several are ours."""
CALM_SECONDS = 1.0
"""How long nobody must have been refused until a crowd is let in again."""
RECEIVING = 4
"""Requests whose bodies are still coming, for each that may be in hand."""


class Admission:
    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings, self._metrics = settings, metrics
        self._late_beats, self._calm_at = 0, 0.0
        self.inflight = 0
        self.limit = settings.max_inflight
        self.answering = Answering(self)
        self.receiving = Receiving(self, settings)
        self.receiving_orders = Receiving(self, settings, sheds=False)
        """From an administrator, who may have come because of the crowd."""

    def beat(self, late: float) -> None:
        """The heartbeat came this late."""
        self._late_beats = self._late_beats + 1 if late > self._settings.max_lag_seconds else 0
        if self._late_beats >= LATE_BEATS:
            self._calm_at = time.monotonic() + CALM_SECONDS
        crowded = time.monotonic() < self._calm_at
        self.limit = (
            min(self._settings.late_inflight, self._settings.max_inflight) if crowded else self._settings.max_inflight
        )
        self._metrics.queue_depth.set(self.inflight)
        self.receiving.give_up_on_slow_ones()
        self.receiving_orders.give_up_on_slow_ones()

    def check(self) -> None:
        """Raises Refusal (429)."""
        if self.inflight >= self.limit:
            raise self.shed("inflight" if self.limit == self._settings.max_inflight else "lag")

    def shed(self, reason: str) -> Refusal:
        self._metrics.shed.labels(reason).inc()
        if reason == "lag":
            self._calm_at = time.monotonic() + CALM_SECONDS
        return Refusal("overloaded", "too many requests at once; come back in a moment")


class Answering:
    """`with admission.answering:` while an answer is made. Raises Refusal (429)."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def __enter__(self) -> None:
        self._admission.check()
        self._admission.inflight += 1

    def __exit__(self, *_: object) -> None:
        self._admission.inflight -= 1


class Receiving:
    """`with admission.receiving:` while a body comes, which may take its time: it holds no place among those in hand.

    Raises Refusal: 429 at once, 408 where the body does not come.
    """

    def __init__(self, admission: Admission, settings: Settings, sheds: bool = True) -> None:
        self._admission, self._seconds, self._sheds = admission, settings.body_seconds, sheds
        self._limit = RECEIVING * settings.max_inflight
        self._since: dict[asyncio.Task[object], float] = {}
        self._given_up: set[asyncio.Task[object]] = set()

    def __enter__(self) -> None:
        if self._sheds:
            self._admission.check()
        if len(self._since) >= self._limit:
            raise self._admission.shed("bodies")
        self._since[_task()] = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        task = _task()
        del self._since[task]
        if self._given_up and task in self._given_up:
            self._given_up.discard(task)
            if kind is asyncio.CancelledError and not task.uncancel():
                told = f"the body did not come within {self._seconds:g} s"
                raise Refusal("slow_body", told, headers={"connection": "close"}) from None

    def give_up_on_slow_ones(self) -> None:
        """One look at the oldest, instead of a timer for each."""
        patience = time.monotonic() - self._seconds
        for task, since in self._since.items():
            if since > patience:
                break  # they are in the order in which they came
            if task not in self._given_up:
                self._given_up.add(task)
                task.cancel()


def _task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101  # requests are tasks
    return task
