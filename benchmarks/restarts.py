"""Counts the requests of keep-alive clients that get no answer while a server is stopped."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from benchmarks.load import request

CLIENTS, PERIOD_SECONDS, BEFORE_SECONDS, AFTER_SECONDS = 20, 0.05, 1.0, 0.5


def lost_requests(port: int, stop_server: Callable[[], None]) -> tuple[int, int]:
    """Returns the number of requests without an answer, and the number of requests sent.

    Clients send every 50 ms and, like most clients, do not watch idle connections. A connection that cannot be opened is not
    counted: no request was sent, and it is safe to try another server.
    """
    done = threading.Event()
    clients = [Client(port) for _ in range(CLIENTS)]
    thread = threading.Thread(target=lambda: asyncio.run(_run(clients, done)))
    thread.start()
    try:
        time.sleep(BEFORE_SECONDS)
        stop_server()
        time.sleep(AFTER_SECONDS)
    finally:
        done.set()
        thread.join()
    return sum(client.lost for client in clients), sum(client.sent for client in clients)


async def _run(clients: list[Client], done: threading.Event) -> None:
    await asyncio.gather(*(client.run(done, number * PERIOD_SECONDS / CLIENTS) for number, client in enumerate(clients)))


class Client:
    def __init__(self, port: int) -> None:
        self._port, self.sent, self.lost = port, 0, 0
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self, done: threading.Event, delay: float) -> None:
        await asyncio.sleep(delay)
        while not done.is_set():
            with suppress(ConnectionRefusedError):
                await self._ask()
            await asyncio.sleep(PERIOD_SECONDS)
        self._close()

    async def _ask(self) -> None:
        if self._connection is None:
            self._connection = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._connection
        self.sent += 1
        try:
            writer.write(request(b'{"nodes": [1]}', port=self._port))
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError):
            self.lost += 1
            self._close()
        else:
            if b"connection: close" in head:
                self._close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None
