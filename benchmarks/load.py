"""A load generator for HTTP in one process, with plain sockets and prepared requests.

closed      every connection sends its next request as soon as the last one is answered: measures capacity
open_loop   every request has an intended time that does not depend on the server: measures latency at a rate

In an open loop, a latency counts from the intended time. A generator that counts from the time of sending, or that sends
less while the server is slow, omits the requests that would have waited (coordinated omission).
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import resource
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

Clock = Callable[[], float]
"""For example the CPU time of the server. A run does not count the opening and closing of connections."""
LATE_SECONDS = 5.0
"""Wait for responses after the last intended time. Requests without a response after that have status 0."""
TICK_SECONDS = 0.001
"""Requests that are due are sent once per tick: uvloop has no shorter timers. A latency includes up to one tick."""
MAX_CONNECTIONS = 3500
"""A worker of the service takes 4,096 (SGF_MAX_CONNECTIONS)."""
ROTATION_SECONDS = 2.0
"""Idle connections are used in turn, each about once in this time: a server closes those that are idle for longer."""


@dataclass(frozen=True)
class Load:
    """The measurements of one run."""

    seconds: float
    latencies: np.ndarray
    """Of responses with status 200, in seconds."""
    statuses: dict[int, int]
    """The number of requests by status. 0: the connection was lost, or there was no response."""
    refused_latencies: np.ndarray
    answered_in_time: int
    """Responses with status 200 before the end of the run."""
    waited: int = 0
    """Requests whose intended time came while no connection was idle."""
    lag: float = 0.0
    """p99 of the generator's own delay, in seconds: above a few ticks, the run measures the generator."""
    cpu_seconds: float = 0.0
    """Of the caller's clock, from the first request to the last response."""

    @property
    def rate(self) -> float:
        """Answers per second (goodput)."""
        return self.answered_in_time / self.seconds

    @property
    def refused(self) -> int:
        return self.statuses.get(429, 0)

    def quantile(self, share: float) -> float:
        return float(np.quantile(self.latencies, share)) if len(self.latencies) else float("nan")


@dataclass(frozen=True)
class Stream:
    """Requests at a constant rate, or as a Poisson process if `seed` is set."""

    requests: Sequence[bytes]
    rate: float
    seed: int | None = None
    connections: int = 0
    """0: chosen by the rate."""

    def intended_times(self, seconds: float) -> list[float]:
        """Returns seconds from the start of the run, in ascending order."""
        count = round(self.rate * seconds)
        if self.seed is None:
            times = np.arange(count) / self.rate
        else:  # given their number, the arrivals of a Poisson process are uniform
            times = np.sort(np.random.default_rng(self.seed).uniform(0, seconds, count))
        return [float(seconds) for seconds in times]

    @property
    def pool_size(self) -> int:
        return self.connections or min(MAX_CONNECTIONS, max(16, round(ROTATION_SECONDS * self.rate)))


def request(body: bytes, path: str = "/predict", port: int = 80, headers: str = "") -> bytes:
    """`headers` are lines that end with CRLF."""
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n{headers}"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def closed(port: int, requests: Sequence[bytes], connections: int, seconds: float, clock: Clock = float) -> Load:
    """Every connection sends its next request as soon as the last one is answered, or refused."""
    return _run(_closed(port, requests, connections, seconds, clock))


def open_loop(port: int, stream: Stream, seconds: float, clock: Clock = float) -> Load:
    return side_by_side(port, [stream], seconds, clock)[0]


def side_by_side(port: int, streams: Sequence[Stream], seconds: float, clock: Clock = float) -> list[Load]:
    """Sends several streams at once, each over its own connections."""
    return _run(_open(port, streams, seconds, clock))


def _run(load: Coroutine[Any, Any, Any]) -> Any:
    hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))  # every connection is an open file
    gc.disable()  # a collection would delay requests
    try:
        return uvloop.run(load)
    finally:
        gc.enable()


async def _closed(port: int, requests: Sequence[bytes], connections: int, seconds: float, clock: Clock) -> Load:
    pool = Pool(port, requests)
    await pool.open(connections)
    clock_start = clock()
    pool.closed_loop, start = True, time.perf_counter()
    for connection in pool.take_idle():
        connection.send(time.perf_counter())
    await asyncio.sleep(seconds)
    end = time.perf_counter()
    pool.closed_loop = False
    await pool.drain()
    return pool.load(start, end, clock() - clock_start)


async def _open(port: int, streams: Sequence[Stream], seconds: float, clock: Clock) -> list[Load]:
    pools = [Pool(port, stream.requests) for stream in streams]
    times = [stream.intended_times(seconds) for stream in streams]
    for pool, stream in zip(pools, streams, strict=True):
        await pool.open(stream.pool_size)
    clock_start, start = clock(), time.perf_counter()
    await asyncio.gather(*(pool.send_at(start, due) for pool, due in zip(pools, times, strict=True)))
    await asyncio.sleep(start + seconds - time.perf_counter())
    await asyncio.gather(*(pool.drain() for pool in pools))
    cpu_seconds = clock() - clock_start
    return [pool.load(start, start + seconds, cpu_seconds) for pool in pools]


def accept_queue(port: int) -> int:
    """Returns the number of connections to a listening port that the server has not accepted yet."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = [row for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")]
    return sum(int(row[4].partition(":")[2], 16) for row in listening)


class Pool:
    """The connections to one server, and the responses on them."""

    def __init__(self, port: int, requests: Sequence[bytes]) -> None:
        self._port, self.next_requests = port, itertools.cycle(requests)
        self.closed_loop = False
        """True: a connection sends its next request at once."""
        self._idle: deque[Connection] = deque()
        self._due: deque[float] = deque()
        self._waited, self.in_flight = 0, set[Connection]()
        self._lags: list[float] = []
        self._reopening = set[asyncio.Task[None]]()
        self.responses: list[tuple[int, float, float]] = []
        """Status, intended time, time of the response."""

    async def open(self, count: int) -> None:
        """Opens connections and returns once the server has accepted all of them.

        uvloop accepts one connection per iteration of its event loop: under load, the others would wait for seconds.
        """
        for _ in range(count):
            await self._connect()
        async with asyncio.timeout(LATE_SECONDS):
            while accept_queue(self._port):
                await asyncio.sleep(0.005)

    async def send_at(self, start: float, times: Sequence[float]) -> None:
        sent = 0
        while sent < len(times):
            now = time.perf_counter() - start
            if times[sent] <= now:
                self._lags.append(now - times[sent])
            while sent < len(times) and times[sent] <= now:
                self._send(start + times[sent])
                sent += 1
            await asyncio.sleep(TICK_SECONDS)

    def release(self, connection: Connection) -> None:
        """Called by a connection that is new, or whose request is answered."""
        if self.closed_loop:
            connection.send(time.perf_counter())
        elif self._due:
            connection.send(self._due.popleft())
        else:
            self._idle.append(connection)

    def lost(self, connection: Connection) -> None:
        """Called by a connection that the server closed. Opens another connection in its place."""
        if connection in self._idle:
            self._idle.remove(connection)
        task = asyncio.ensure_future(self._reopen())
        self._reopening.add(task)
        task.add_done_callback(self._reopening.discard)

    def take_idle(self) -> list[Connection]:
        idle, self._idle = list(self._idle), deque()
        return idle

    async def drain(self) -> None:
        end = time.perf_counter() + LATE_SECONDS
        while (self.in_flight or self._due) and time.perf_counter() < end:
            await asyncio.sleep(0.01)
        late = [connection.intended for connection in self.in_flight] + list(self._due)
        self.responses += [(0, intended, time.perf_counter()) for intended in late]
        for connection in [*self._idle, *self.in_flight]:
            connection.close()

    def load(self, start: float, end: float, cpu_seconds: float) -> Load:
        answered = [response for response in self.responses if response[0] == 200]
        others = [response for response in self.responses if response[0] != 200]
        latencies, refused = (np.array([done - intended for _, intended, done in part]) for part in (answered, others))
        in_time = sum(done <= end for _, _, done in answered)
        statuses = dict(Counter(status for status, _, _ in self.responses))
        lag = float(np.quantile(self._lags, 0.99)) if self._lags else 0.0
        return Load(end - start, latencies, statuses, refused, in_time, self._waited, lag, cpu_seconds)

    async def _reopen(self) -> None:
        with suppress(OSError):  # the server is gone: its requests get status 0
            await self._connect()

    async def _connect(self) -> None:
        await asyncio.get_running_loop().create_connection(lambda: Connection(self), "127.0.0.1", self._port)

    def _send(self, intended: float) -> None:
        if self._idle:
            self._idle.popleft().send(intended)
        else:
            self._waited += 1
            self._due.append(intended)


class Connection(asyncio.Protocol):
    """A connection with at most one request in flight."""

    intended = 0.0

    def __init__(self, pool: Pool) -> None:
        self._pool, self._open = pool, True
        self._received, self._expected = b"", 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._pool.release(self)

    def send(self, intended: float) -> None:
        self.intended = intended
        self._pool.in_flight.add(self)
        self._transport.write(next(self._pool.next_requests))

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._expected:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self._received[:end].lower() + b"\r\n"
            place = head.index(b"content-length:") + 15
            self._expected = end + 4 + int(head[place : head.index(b"\r\n", place)])
        if len(self._received) >= self._expected:
            self._done(int(self._received[9:12]))
            self._received, self._expected = b"", 0
            self._pool.release(self)

    def connection_lost(self, _error: Exception | None) -> None:
        if self._open:
            if self in self._pool.in_flight:
                self._done(0)
            self._pool.lost(self)

    def close(self) -> None:
        self._open = False
        self._transport.close()

    def _done(self, status: int) -> None:
        self._pool.in_flight.discard(self)
        self._pool.responses.append((status, self.intended, time.perf_counter()))
