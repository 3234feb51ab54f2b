"""Small HTTP servers in a thread with an exactly known behaviour."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STALL_SECONDS = 0.5
ANSWER, REFUSAL = (b"HTTP/1.1 %d OK\r\ncontent-length: 2\r\n\r\n{}" % status for status in (200, 429))


class Answering(asyncio.Protocol):
    """Answers a request as soon as its head arrives. Request numbers count all connections, from 1."""

    stalls_at = -1
    """The number of the request that blocks the server."""
    refuses_every = closes_every = 0
    """0: never."""

    def __init__(self, requests: list[bytes]) -> None:
        self._requests = requests

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._requests.append(data)
        number = len(self._requests)
        if number == self.stalls_at:
            time.sleep(STALL_SECONDS)
        self._transport.write(REFUSAL if self.refuses_every and number % self.refuses_every == 0 else ANSWER)
        if self.closes_every and number % self.closes_every == 0:
            self._transport.close()


class Stalling(Answering):
    stalls_at = 60


class Refusing(Answering):
    refuses_every = 2


class Closing(Answering):
    closes_every = 5


@contextmanager
def serving(kind: type[Answering]) -> Iterator[int]:
    """Starts a server in a thread and yields its port."""
    loop = asyncio.new_event_loop()
    requests: list[bytes] = []
    server = loop.run_until_complete(loop.create_server(lambda: kind(requests), "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        loop.run_until_complete(asyncio.sleep(0.05))  # releases connections that clients have closed
        loop.close()
