"""Admission: which requests run now, which wait, and which are refused. docs/admission.md explains it for operators.

Three budgets, each in the unit in which the resource is spent:

    time    a queue may hold `max_queue_seconds` of work: what it takes to answer all that wait, at the measured rate
    work    a lane runs at most `limit` requests at once; expensive requests release their slot and wait elsewhere
    bytes   received bodies and unsent answers of all connections together stay below `max_buffer_bytes`

A queue within its bound is served oldest first, and nothing is refused. A queue that exceeds its bound is overloaded until
it is within its bound and hardly any request is refused (CALM_SHARE). An overloaded queue is kept short, so that answers
are quick: a request that arrives while `limit` / 2 others wait is refused at once, which is cheap. Clients that
retry at once could keep a worker busy with nothing but refusals. The number of refusals is therefore limited too, in
proportion to the answers (REFUSALS_PER_ANSWER). A request beyond that number is delayed until no other request waits, and
refused after PATIENCE times the bound.
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
    from service.http.request import Request

LOG = logging.getLogger("service.admission")
ANSWER_LIMIT = 32
"""Requests of /predict, /embed, /explain and /similar that run at once. Cheap ones are answered in batches on the event
loop: a larger number makes every answer wait for a longer batch, a smaller one makes batches less efficient. With 16, a
worker that is at half of its capacity does not keep up while the graph changes 500 times per second; with 64, answers in an
overload take longer."""
PAGE_LIMIT = 4
"""Other requests that run at once, in threads."""
WINDOW_SECONDS = 0.05
"""How often a lane with a queue measures its rate, and looks for requests that have waited too long."""
SMOOTHING = 0.4
"""Weight of the last window in the measured rate."""
CALM_SHARE = 0.05
"""An overload has ended when a window has at most this many refusals per answer."""
REFUSALS_PER_ANSWER = 5.0
"""Most requests that are refused as they arrive, per answer. Larger: clients that retry at once take more of the worker's
time. Smaller: a worker that is offered more than it can refuse keeps requests waiting, and with them the connections of a
pool."""
MIN_REFUSALS = 100
"""Refusals per window that are allowed in any case: 2,000 per second take a few percent of a core."""
PATIENCE = 2.0
"""A request that has waited for this many times the bound is refused."""


class Slot:
    """The right of a request to run in its lane. Releasing it a second time has no effect."""

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
        self._short_queue = max(1, limit // 2)
        """In an overload, this many requests wait; others are refused or delayed."""
        self._waiting: deque[Request] = deque()
        self._delayed: deque[Request] = deque()
        self._running, self._scheduled = 0, False
        self._answers, self._rate, self._window_start = 0, 0.0, 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop  # of the requests that wait; `get_running_loop` is a system call
        self.is_overloaded, self._refused, self._refused_in_all = False, 0, 0
        self._refusals_left: float = MIN_REFUSALS
        """In this window. Refused requests that have waited too long count too, and may make it negative."""
        self._refusal = overloaded("too many requests wait or run")
        """For requests that are refused as they arrive. A window has one refusal, whose reply is encoded once."""

    @property
    def is_busy(self) -> bool:
        """A request that arrives now has to wait."""
        return bool(self._waiting or self._delayed)

    @property
    def depth(self) -> int:
        """Requests that wait or run."""
        return len(self._waiting) + len(self._delayed) + self._running

    def arrive(self, request: Request) -> None:
        """Starts the request, now or later, or refuses it."""
        if self._running < self._limit and not self.is_busy:
            self._start(request)
            return
        if refusal := self.shed():
            request.refuse(refusal)
            return
        loop = request.connection.loop
        now = request.arrived = loop.time()
        is_delayed = self.is_overloaded and len(self._waiting) >= self._short_queue
        (self._delayed if is_delayed else self._waiting).append(request)
        if self._timer is None:
            self._answers, self._window_start = 0, now
            self._loop, self._timer = loop, loop.call_later(WINDOW_SECONDS, self._end_window)

    def shed(self) -> Refusal | None:
        """Returns the refusal for a request that can neither run nor wait, and counts it. The caller sends it.

        None if `arrive` is to be called.
        """
        if not self.is_overloaded or len(self._waiting) < self._short_queue or self._refusals_left < 1:
            return None
        self._refused += 1
        self._refusals_left -= 1
        return self._refusal

    def leave(self) -> None:
        self._running -= 1
        self._answers += 1
        if self.is_busy and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._start_waiting)

    def _start(self, request: Request) -> None:
        self._running += 1
        request.start(Slot(self))

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
        self._metrics.record_shed("queue", self._refused)
        self._refused_in_all += self._refused
        if is_full and not self.is_overloaded:
            LOG.warning("overloaded: %d requests wait or run, at %.0f answers per second", self.depth, self._rate)
            self._delayed.extend(self._waiting)  # they have waited too long already: answer later requests quickly
            self._waiting.clear()
        if self.is_overloaded and is_calm and not is_full:
            LOG.warning("the overload has ended; %d requests were refused", self._refused_in_all)
            self._refused_in_all = 0
        self.is_overloaded = is_full or (self.is_overloaded and not is_calm)
        allowed = max(MIN_REFUSALS, REFUSALS_PER_ANSWER * self._rate * WINDOW_SECONDS)
        self._refusals_left = min(self._refusals_left + allowed, allowed) if self.is_overloaded else allowed
        self._refused, self._answers, self._window_start = 0, 0, now
        self._refusal = overloaded(f"{self.depth} requests wait or run")
        self._refuse_expired()
        if self.is_busy or self.is_overloaded:
            self._timer = self._loop.call_later(WINDOW_SECONDS, self._end_window)
        else:
            self._timer, self._rate = None, 0.0

    def _refuse_expired(self) -> None:
        """Refuses requests that have waited too long. Called with every batch that starts, so that each call refuses only a
        few.
        """
        if not self.is_overloaded:
            return
        now, patience = self._loop.time(), PATIENCE * self._max_seconds
        refusal = overloaded(f"{self.depth} requests wait or run, and this one has waited for {patience:g} s")
        for queue in (self._waiting, self._delayed):
            while queue and queue[0].arrived <= now - patience:
                request = queue.popleft()
                if not (request.is_gone or request.is_refused):
                    self._refused += 1
                    self._refusals_left -= 1
                    request.refuse(refusal)


class Admission:
    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings, self._metrics = settings, metrics
        self.answers = Lane(ANSWER_LIMIT, settings.max_queue_seconds, metrics)
        self.pages = Lane(PAGE_LIMIT, settings.max_queue_seconds, metrics)
        self.max_connections = settings.max_connections
        self._connections: set[Protocol] = set()
        self.held_bytes = 0
        """Bytes of received bodies and unsent answers."""
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
        """Counts a request against the rate limit of its key: a token bucket that holds the requests of one second.

        Raises Refusal (429).
        """
        rate = self._settings.key_rate
        if not rate or key is None:
            return
        now = asyncio.get_running_loop().time()
        tokens, before = self._rates.get(key, (rate, now))
        tokens = min(rate, tokens + (now - before) * rate)
        if tokens < 1:
            self._metrics.record_shed("rate")
            raise Refusal("overloaded", f"overloaded: this key may send {rate:g} requests per second; retry after 1 s")
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
