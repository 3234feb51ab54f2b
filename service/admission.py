"""Admit or refuse, before a request costs anything.

A crowd that comes once is let in. If it stays, so that answers take long, fewer are taken at a time, so that those are
answered soon.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable
from types import TracebackType

from service.crowd import Crowd
from service.errors import Refusal
from service.metrics import Metrics
from service.settings import Settings

RECEIVING = 4
"""Requests whose bodies are still coming, for each that may be in hand."""


class Admission:
    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings, self._metrics, self._crowd = settings, metrics, Crowd(settings)
        self._limit, self._announced = settings.max_inflight, 0
        self.answering = Answering(self)
        self.receiving = Receiving(self, settings)
        self.receiving_orders = Receiving(self, settings, sheds=False)
        """From an administrator, who may have come because of the crowd."""

    def beat(self) -> None:
        most = self._settings.max_inflight
        self._limit = min(self._settings.late_inflight, most) if self._crowd.waits_for_long() else most
        self._metrics.queue_depth.set(self._crowd.in_hand)
        self.receiving.give_up_on_slow_ones()
        self.receiving_orders.give_up_on_slow_ones()

    def announce(self, caller: Hashable) -> bool:
        """Whether a request whose head has just come will find a place.

        Of all that come in one turn of the event loop the heads are read first; then their tasks run, which enter. Until
        they do they are counted here.

        Args:
            caller: the same for all requests of a connection.
        """
        self._crowd.called(caller)
        if self._crowd.in_hand + self._announced >= self._limit:
            return False
        if not self._announced:
            asyncio.get_running_loop().call_soon(self._forget_announced)
        self._announced += 1
        return True

    def check(self) -> None:
        """Raises Refusal (429)."""
        if self._crowd.in_hand >= self._limit:
            self.turn_away()
            raise overloaded()

    def enter(self) -> None:
        """Raises Refusal (429)."""
        self.check()
        self._crowd.enter()

    def leave(self) -> None:
        self._crowd.leave()

    def turn_away(self, reason: str | None = None) -> None:
        """Whoever there is no place for is told so."""
        if reason is None:
            reason = "inflight" if self._limit == self._settings.max_inflight else "lag"
        if reason == "lag":
            self._crowd.refused()
        self._metrics.turned_away(reason)

    def _forget_announced(self) -> None:
        self._announced = 0


class Answering:
    """`with admission.answering:` while an answer is made. Raises Refusal (429)."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def __enter__(self) -> None:
        self._admission.enter()

    def __exit__(self, *_: object) -> None:
        self._admission.leave()


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
            self._admission.turn_away("bodies")
            raise overloaded()
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


def overloaded() -> Refusal:
    return Refusal("overloaded", "too many requests at once; come back in a moment")


def _task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101  # requests are tasks
    return task
