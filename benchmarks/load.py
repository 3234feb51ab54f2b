"""A load of HTTP requests from one process: raw sockets, prepared bytes, so that the generator is not what is measured."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


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
    return asyncio.run(_run(port, requests, connections, seconds, None))


def open_loop(port: int, requests: Sequence[bytes], connections: int, seconds: float, rate: float) -> Load:
    """Requests leave at a given rate, as far as a connection is free; a latency counts from the moment that one was sent."""
    return asyncio.run(_run(port, requests, connections, seconds, rate))


async def _run(port: int, requests: Sequence[bytes], connections: int, seconds: float, rate: float | None) -> Load:
    good: list[float] = []
    bad: list[float] = []
    statuses: dict[int, int] = {}
    turns = itertools.cycle(requests)
    start = time.perf_counter()
    end = start + seconds
    due = itertools.count()

    async def caller() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while True:
                if rate is not None and (wait := start + next(due) / rate - time.perf_counter()) > 0:
                    await asyncio.sleep(wait)
                asked = time.perf_counter()
                if asked >= end:
                    return
                writer.write(next(turns))
                status = await _answer(reader)
                statuses[status] = statuses.get(status, 0) + 1
                (good if status == 200 else bad).append(time.perf_counter() - asked)
        finally:
            writer.close()

    await asyncio.gather(*(caller() for _ in range(connections)))
    return Load(time.perf_counter() - start, np.array(good), statuses, np.array(bad))


async def _answer(reader: asyncio.StreamReader) -> int:
    head = await reader.readuntil(b"\r\n\r\n")
    lower = head.lower()
    place = lower.index(b"content-length:") + 15
    await reader.readexactly(int(lower[place : lower.index(b"\r\n", place)]))
    return int(head[9:12])
