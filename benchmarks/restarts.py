"""Counts the requests of keep-alive clients that get no answer while a server is stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection, HTTPException

CLIENTS, PERIOD_SECONDS, BEFORE_SECONDS, AFTER_SECONDS = 20, 0.05, 1.0, 0.5


def lost_requests(port: int, stop_server: Callable[[], None]) -> tuple[int, int]:
    """Returns the number of requests without an answer, and the number of requests sent.

    Clients send every 50 ms and, like most clients, do not watch idle connections. A connection that cannot be opened is not
    counted: no request was sent, and it is safe to try another server.
    """
    done = threading.Event()
    clients = [Client(port, done, number * PERIOD_SECONDS / CLIENTS) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        time.sleep(BEFORE_SECONDS)
        stop_server()
        time.sleep(AFTER_SECONDS)
    finally:
        done.set()
        for client in clients:
            client.join()
    return sum(client.lost for client in clients), sum(client.sent for client in clients)


class Client(threading.Thread):
    def __init__(self, port: int, done: threading.Event, delay: float) -> None:
        super().__init__()
        self._connection = HTTPConnection("127.0.0.1", port)
        self._done, self._delay, self.sent, self.lost = done, delay, 0, 0

    def run(self) -> None:
        time.sleep(self._delay)
        while not self._done.wait(PERIOD_SECONDS):
            with suppress(ConnectionRefusedError):
                self._ask()
        self._connection.close()

    def _ask(self) -> None:
        if self._connection.sock is None:  # first request, lost request, or a response with "connection: close"
            self._connection.connect()
        self.sent += 1
        try:
            self._connection.request("POST", "/predict", b'{"nodes": [1]}', {"content-type": "application/json"})
            self._connection.getresponse().read()
        except (OSError, HTTPException):
            self.lost += 1
            self._connection.close()
