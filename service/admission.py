"""Admission: which requests run now, which wait, and which are refused. docs/admission.md explains it for operators.

Three budgets, each in the unit in which the resource is spent:

    time    a queue may hold `max_queue_seconds` of work: what it takes to answer all that wait, at the measured rate
    work    a lane runs at most `limit` requests at once; expensive requests leave their place and wait elsewhere
    bytes   received bodies and unsent answers of all connections together stay below `max_buffer_bytes`

A queue within its bound is served oldest first, and nothing is refused. A queue that exceeds its bound is overloaded until
hardly any request is refused. While it is overloaded it is kept short, so that answers are quick: a request that arrives
while as many wait as may run is refused, which is cheap. A request on a connection that was refused less than RETRY_SECONDS
ago is not refused at once again: it is delayed until no other request waits, and refused after PATIENCE times the bound.
Clients that retry at once therefore cause a few refusals per second, not thousands, and cannot keep an overload alive.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from service.errors import Refusal
from service.settings import Settings
from service.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from service.http.protocol import Protocol
    from service.http.request import Request, Unparsed

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
CALM_SHARE = 0.05
"""Refusals per answer, in one window, below which an overload has ended."""
REFUSAL_SECONDS = 0.005
"""Requests that are refused as they arrive are answered together, once per this time: each costs less."""
RETRY_SECONDS = 0.1
"""A request that follows a refusal on the same connection within this time is a retry that ignores `Retry-After`."""
PATIENCE = 2.0
"""Times the bound: how long a delayed request waits."""


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
        self._delayed: deque[Request | Unparsed] = deque()
        self._running, self._scheduled = 0, False
        self._answers, self._rate, self._window_start = 0, 0.0, 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop  # of the requests that wait; `get_running_loop` is a system call
        self._is_overloaded, self._refused, self._refused_in_all = False, 0, 0
        self._excess: list[Request | Unparsed] = []

    @property
    def is_busy(self) -> bool:
        """A request that arrives now has to wait."""
        return bool(self._waiting or self._delayed)

    @property
    def depth(self) -> int:
        """Requests that wait or run."""
        return len(self._waiting) + len(self._delayed) + self._running

    def arrive(self, request: Request | Unparsed) -> None:
        """Starts the request, now or later, or refuses it."""
        loop = request.connection.loop
        now = request.arrived = loop.time()
        queue = self._waiting
        if self._running < self._limit and not self.is_busy:
            self._start(request)
            return
        if self._is_overloaded:
            if now - request.connection.refused_at < RETRY_SECONDS:
                queue = self._delayed
            elif len(queue) >= self._limit:
                self._excess.append(request)
                if len(self._excess) == 1:
                    loop.call_later(REFUSAL_SECONDS, self._refuse_excess)
                return
        queue.append(request)
        if self._timer is None:
            self._answers, self._window_start = 0, now
            self._loop, self._timer = loop, loop.call_later(WINDOW_SECONDS, self._end_window)

    def leave(self) -> None:
        self._running -= 1
        self._answers += 1
        if self.is_busy and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._start_waiting)

    def _start(self, request: Request | Unparsed) -> None:
        self._running += 1
        request.start(Place(self))

    def _start_waiting(self) -> None:
        self._scheduled = False
        self._refuse_expired()
        while self._running < self._limit and (queue := self._waiting or self._delayed):
            request = queue.popleft()
            if not (request.is_gone or request.is_refused):
                self._start(request)

    def _end_window(self) -> None:
        now = self._loop.time()
        rate = self._answers / max(now - self._window_start, WINDOW_SECONDS)
        self._rate = rate if not self._rate else SMOOTHING * rate + (1 - SMOOTHING) * self._rate
        oldest = min((queue[0].arrived for queue in (self._waiting, self._delayed) if queue), default=now)
        is_full = self.depth - self._running > self._max_seconds * self._rate and oldest < now - self._max_seconds
        is_calm = self._refused <= CALM_SHARE * self._answers
        if is_full and not self._is_overloaded:
            LOG.warning("overloaded: %d requests wait or run, at %.0f answers per second", self.depth, self._rate)
            self._delayed.extend(self._waiting)  # they have waited too long already: answer later requests quickly
            self._waiting.clear()
        if self._is_overloaded and is_calm and not is_full:
            LOG.warning("the overload has ended; %d requests were refused", self._refused_in_all)
            self._refused_in_all = 0
        self._is_overloaded = is_full or (self._is_overloaded and not is_calm)
        self._refused, self._answers, self._window_start = 0, 0, now
        self._refuse_expired()
        if self.is_busy or self._is_overloaded:
            self._timer = self._loop.call_later(WINDOW_SECONDS, self._end_window)
        else:
            self._timer, self._rate = None, 0.0

    def _refuse_excess(self) -> None:
        excess, self._excess = self._excess, []
        refusal = overloaded(f"{self.depth} requests wait or run")
        for request in excess:
            self._refuse(request, refusal)

    def _refuse_expired(self) -> None:
        """A few at a time, with every batch that is started: all at once would delay the answers for milliseconds."""
        if not self._is_overloaded:
            return
        patience = PATIENCE * self._max_seconds
        expired, depth = self._loop.time() - patience, self.depth
        for queue in (self._waiting, self._delayed):
            while queue and queue[0].arrived <= expired:
                reason = f"{depth} requests wait or run, and this one has waited for {patience:g} s"
                self._refuse(queue.popleft(), overloaded(reason))

    def _refuse(self, request: Request | Unparsed, refusal: Refusal) -> None:
        if request.is_gone or request.is_refused:
            return
        self._refused += 1
        self._refused_in_all += 1
        self._metrics.record_shed("queue")
        request.connection.refused_at = self._loop.time()
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
            self._metrics.record_shed("rate")
            raise Refusal("overloaded", f"this key may send {rate:g} requests per second; retry after 1 s")
        self._rates[key] = tokens - 1, now

    def hold(self, connection: Protocol, count: int) -> None:
        """Records the bytes that a connection holds now. Beyond the budget, cuts off the connection that holds most."""
        self.held_bytes += count - self._held.pop(connection, 0)
        if count:
            self._held[connection] = count
        if self.held_bytes > self._settings.max_buffer_bytes:
            largest = max(self._held, key=self._held.__getitem__)
            self._metrics.record_shed("bytes")
            limit = self._settings.max_buffer_bytes
            largest.cut_off(overloaded(f"bodies and unread answers take {self.held_bytes:,} bytes (limit {limit:,})"))


def overloaded(reason: str) -> Refusal:
    return Refusal("overloaded", f"overloaded: {reason}; retry after 1 s")
