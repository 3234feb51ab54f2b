"""A load of HTTP requests from one process: bare connections, prepared bytes. The generator is not what is measured."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import uvloop

LATE_SECONDS = 5.0
"""How long answers are waited for after the last request was sent."""


@dataclass(frozen=True)
class Load:
    """What one run of a load saw."""

    seconds: float
    latencies: np.ndarray
    """Of the requests that were answered with 200."""
    statuses: dict[int, int]
    refused_latencies: np.ndarray

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.latencies) / self.seconds

    def quantile(self, share: float) -> float:
        return float(np.quantile(self.latencies, share)) if len(self.latencies) else float("nan")


def request(body: bytes, path: str = "/predict", port: int = 80) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def closed(port: int, requests: Sequence[bytes], connections: int, seconds: float) -> Load:
    """Every connection asks again as soon as it is answered."""
    return uvloop.run(_run(port, requests, connections, seconds, None))


def open_loop(port: int, requests: Sequence[bytes], connections: int, seconds: float, rate: float) -> Load:
    """Requests leave at a given rate, as far as a connection is free; a latency counts from the moment that one was sent."""
    return uvloop.run(_run(port, requests, connections, seconds, rate))


async def _run(port: int, requests: Sequence[bytes], connections: int, seconds: float, rate: float | None) -> Load:
    loop = asyncio.get_running_loop()
    seen: list[tuple[int, float]] = []
    turns = itertools.cycle(requests)
    callers = [Caller(turns, seen, again=rate is None) for _ in range(connections)]
    for one in callers:
        await loop.create_connection(lambda one=one: one, "127.0.0.1", port)  # type: ignore[misc]  # bound now
    start = time.perf_counter()
    if rate is None:
        for one in callers:
            one.ask()
        await asyncio.sleep(seconds)
    else:
        await _ask_at_rate(callers, start, seconds, rate)
    elapsed = time.perf_counter() - start
    found = list(seen)
    for one in callers:
        one.again = False
    await asyncio.wait_for(asyncio.gather(*(one.idle() for one in callers)), LATE_SECONDS)
    for one in callers:
        one.close()
    good, bad = ([took for status, took in found if (status == 200) is fine] for fine in (True, False))
    return Load(elapsed, np.array(good), dict(Counter(status for status, _ in found)), np.array(bad))


async def _ask_at_rate(callers: Sequence[Caller], start: float, seconds: float, rate: float) -> None:
    asked, turn = 0, deque(callers)  # in turn: a connection that nobody uses would be closed
    while (now := time.perf_counter() - start) < seconds:
        for _ in callers:
            if asked >= now * rate:
                break
            if turn[0].free:
                turn[0].ask()
                asked += 1
            turn.rotate(-1)
        asked = max(asked, int(now * rate) - len(callers))  # what no connection was free for is not made up for later
        await asyncio.sleep(0.001)  # of less uvloop makes nothing, and this would spin beside the server


class Caller(asyncio.Protocol):
    """One connection, one question at a time."""

    def __init__(self, turns: Iterator[bytes], seen: list[tuple[int, float]], again: bool) -> None:
        self._turns, self._seen, self.again = turns, seen, again
        self.free = True
        self._received, self._expected = b"", 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def ask(self) -> None:
        self.free, self._asked = False, time.perf_counter()
        self._transport.write(next(self._turns))

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
            self._seen.append((int(self._received[9:12]), time.perf_counter() - self._asked))
            self.free, self._received, self._expected = True, b"", 0
            if self.again:
                self.ask()

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.free:
            self._seen.append((0, time.perf_counter() - self._asked))
            self.free = True

    async def idle(self) -> None:
        while not self.free:
            await asyncio.sleep(0.01)

    def close(self) -> None:
        self._transport.close()
