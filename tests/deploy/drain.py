"""Whether a server that is told to end answers what it has in hand."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

BODY = b'{"nodes": [1]}'
HEAD = (
    b"POST /predict HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n"
    b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n"
)
PAUSE_SECONDS = 0.5
"""After SIGTERM: long enough for a server that does not wait to be gone."""


def check_drains(port: int, tell_to_end: Callable[[], None]) -> dict[str, Any]:
    """The answer to a request of which half had come when the server was told to end. Raises AssertionError: there is none.

    That the head was read is known, not hoped: the server asks for the body (100 Continue).
    """
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(HEAD % len(BODY))
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 "), "it did not take the request"
        connection.sendall(BODY[:5])
        tell_to_end()
        time.sleep(PAUSE_SECONDS)
        try:
            connection.sendall(BODY[5:])
            answer = b"".join(iter(lambda: connection.recv(65_536), b""))
        except ConnectionError as error:
            raise AssertionError(f"it left a request that it had taken: {error}") from error
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), f"it answered {answer!r}"
    found: dict[str, Any] = json.loads(body)
    return found
