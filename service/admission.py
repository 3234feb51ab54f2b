"""Admission: which requests run now, which wait, and which are refused. docs/admission.md explains it for operators.

Three budgets, each in the unit in which the resource is spent:

    time    a queue may hold `max_queue_seconds` of work: what it takes to answer all that wait, at the measured rate
    work    a lane runs at most `limit` requests at once; expensive requests leave their place and wait for the worker thread
    bytes   received bodies and unsent answers of all connections together stay below `max_buffer_bytes`

A queue within its bound is served oldest first, and nothing is refused. Beyond it, and from a quarter of it on while the
queue grows, it is served newest first (adaptive LIFO, Maurer, "Fail at Scale", ACM Queue 13/8, 2015): what is answered is
answered quickly, and beyond the bound a request that has waited for PATIENCE times as long is refused. A client that retries
at once is therefore refused a few times per second, not thousands of times, so that refusals cannot keep an overload alive;
a load that fits the bound again is served at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from service.http.errors import Refusal
from service.settings import Settings
from service.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from service.http.messages import Request, Unparsed
    from service.http.protocol import Protocol

LOG = logging.getLogger("service.admission")
ANSWER_LIMIT = 16
"""Requests of /predict and /embed that run at once. They are answered in batches on the event loop: a larger number makes
every answer wait for a longer batch, a smaller one makes batches less efficient."""
PAGE_LIMIT = 4
"""Other requests that run at once, in threads."""
WINDOW_SECONDS = 0.05
"""How often a lane with a queue measures its rate, and looks for requests that have waited too long."""
SMOOTHING = 0.4
"""Weight of the last window in the measured rate."""
GROWTH = 1.2
"""Arrivals per answer in one window from which on a queue grows. Clients that send their next request when they have their
answer arrive as often as they are answered, however many they are."""
PATIENCE = 2.0
"""Times the bound: how long a request waits before it is refused. At a constant r times the capacity, r - 1 times this long
is ahead in the queue, so that from 1.5 times the capacity on the queue stays beyond its bound, and newest first."""


class Place:
    """A running request's place in its lane. Releasing it a second time has no effect."""

    __slots__ = ("_lane",)

    def __init__(self, lane: Lane | None) -> None:
        """Without a lane there is nothing to release."""
        self._lane = lane

    def release(self) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.leave()


class Lane:
    """A queue and a concurrency limit. Used by the event loop's thread only."""

    def __init__(self, limit: int, max_seconds: float, metrics: Metrics) -> None:
        self._limit, self._max_seconds, self._metrics = limit, max_seconds, metrics
        self._waiting: deque[Request | Unparsed] = deque()
        self._running, self._scheduled = 0, False
        self._arrivals, self._answers, self._rate, self._window_start = 0, 0, 0.0, 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop  # of the requests that wait; `get_running_loop` is a system call
        self.newest_first, self._is_full, self._refused = False, False, 0

    @property
    def is_busy(self) -> bool:
        """A request that arrives now has to wait."""
        return bool(self._waiting)

    @property
    def depth(self) -> int:
        """Requests that wait or run."""
        return len(self._waiting) + self._running

    def arrive(self, request: Request | Unparsed) -> None:
        """Starts the request, now or later, or refuses it."""
        loop = request.connection.loop
        request.arrived = loop.time()
        self._arrivals += 1
        if self._running < self._limit and not self._waiting:
            self._start(request)
            return
        self._waiting.append(request)
        if self._timer is None:
            self._arrivals, self._answers, self._window_start = 0, 0, request.arrived
            self._loop, self._timer = loop, loop.call_later(WINDOW_SECONDS, self._end_window)

    def leave(self) -> None:
        self._running -= 1
        self._answers += 1
        if self._waiting and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._start_waiting)

    def _start(self, request: Request | Unparsed) -> None:
        self._running += 1
        request.start(Place(self))

    def _start_waiting(self) -> None:
        self._scheduled = False
        self._refuse_expired()
        while self._waiting and self._running < self._limit:
            request = self._waiting.pop() if self.newest_first else self._waiting.popleft()
            if not (request.is_gone or request.is_refused):
                self._start(request)

    def _end_window(self) -> None:
        now, is_growing = self._loop.time(), self._arrivals > GROWTH * self._answers
        rate = self._answers / max(now - self._window_start, WINDOW_SECONDS)
        self._rate = rate if not self._rate else SMOOTHING * rate + (1 - SMOOTHING) * self._rate
        self._arrivals, self._answers, self._window_start = 0, 0, now
        bound, loop = self._max_seconds * self._rate, self._loop
        self.newest_first = len(self._waiting) > (bound / 4 if is_growing else bound)
        self._is_full = len(self._waiting) > bound
        self._refuse_expired()
        if self._refused:
            LOG.warning("refused %d requests that had waited for too long; %d wait or run", self._refused, self.depth)
            self._refused = 0
        if self._waiting:
            self._timer = loop.call_later(WINDOW_SECONDS, self._end_window)
        else:
            self._timer, self._rate, self.newest_first, self._is_full = None, 0.0, False, False

    def _refuse_expired(self) -> None:
        """A few at a time, with every batch that is started: all at once would delay the answers for milliseconds."""
        patience = PATIENCE * self._max_seconds
        if not (self._is_full and self._waiting) or self._loop.time() < self._waiting[0].arrived + patience:
            return
        refusal = overloaded(f"{self.depth} requests wait or run, and this one has waited for {patience:g} s")
        arrived = self._loop.time() - patience
        while self._waiting and self._waiting[0].arrived <= arrived:
            request = self._waiting.popleft()
            if not (request.is_gone or request.is_refused):
                self._refused += 1
                self._metrics.turned_away("queue")
                request.refuse(refusal)


class Admission:
    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings, self._metrics = settings, metrics
        self.answers = Lane(ANSWER_LIMIT, settings.max_queue_seconds, metrics)
        self.pages = Lane(PAGE_LIMIT, settings.max_queue_seconds, metrics)
        self.max_connections = settings.max_connections
        self._connections: set[Protocol] = set()
        self.held_bytes = 0
        """Of received bodies and unsent answers."""
        self._held: dict[Protocol, int] = {}
        self._rates: dict[str, tuple[float, float]] = {}

    @property
    def depth(self) -> int:
        return self.answers.depth + self.pages.depth

    def connect(self, connection: Protocol) -> bool:
        """False if there are too many connections."""
        self._connections.add(connection)
        return len(self._connections) <= self.max_connections

    def disconnect(self, connection: Protocol) -> None:
        self._connections.discard(connection)
        self.hold(connection, 0)

    def sweep(self) -> None:
        """Times out connections. Called every quarter of a second: a timer for each request would cost more."""
        now = asyncio.get_running_loop().time()
        for connection in [connection for connection in self._connections if connection.deadline < now]:
            connection.time_out()

    def check_rate(self, key: str | None) -> None:
        """A token bucket per key that holds one second's worth of requests. Raises Refusal (429)."""
        rate = self._settings.key_rate
        if not rate or key is None:
            return
        now = asyncio.get_running_loop().time()
        tokens, before = self._rates.get(key, (rate, now))
        tokens = min(rate, tokens + (now - before) * rate)
        if tokens < 1:
            self._metrics.turned_away("rate")
            raise Refusal("overloaded", f"this key may send {rate:g} requests per second; retry after 1 s")
        self._rates[key] = tokens - 1, now

    def hold(self, connection: Protocol, count: int) -> None:
        """Books the bytes that a connection holds now. Beyond the budget, cuts off the connection that holds most."""
        self.held_bytes += count - self._held.pop(connection, 0)
        if count:
            self._held[connection] = count
        if self.held_bytes > self._settings.max_buffer_bytes:
            largest = max(self._held, key=self._held.__getitem__)
            self._metrics.turned_away("bytes")
            limit = self._settings.max_buffer_bytes
            largest.cut_off(overloaded(f"bodies and unread answers take {self.held_bytes:,} bytes (limit {limit:,})"))


def overloaded(reason: str) -> Refusal:
    return Refusal("overloaded", f"overloaded: {reason}; retry after 1 s")
