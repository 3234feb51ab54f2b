"""HTTP as bytes on a socket, for what a well-behaved client does not send."""

from __future__ import annotations

import json
import re
import select
import socket
from typing import Any

import httpx

BODY = b'{"nodes": [1]}'


def connect(client: httpx.Client) -> socket.socket:
    assert client.base_url.port
    return socket.create_connection(("127.0.0.1", client.base_url.port), timeout=60)


def request(body: bytes = BODY, *headers: bytes, version: bytes = b"1.1", path: bytes = b"/predict") -> bytes:
    head = [b"POST %b HTTP/%b" % (path, version), b"host: x", b"content-length: %d" % len(body), *headers]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def read_response(connection: socket.socket) -> tuple[bytes, dict[str, Any]]:
    """The head of one response, and its JSON. Leaves what comes behind it."""
    head, body = b"", b""
    while not head.endswith(b"\r\n\r\n"):
        head += _more(connection, 1)
    length = re.search(rb"content-length: (\d+)", head)
    assert length, head
    while len(body) < int(length[1]):
        body += _more(connection, int(length[1]) - len(body))
    return head.removesuffix(b"\r\n\r\n"), json.loads(body)


def readable(connection: socket.socket, seconds: float = 0) -> bool:
    """True if the other end sends something or closes the connection within this time."""
    poll = select.poll()  # `select.select` takes no descriptor above 1,023
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def is_closed(connection: socket.socket) -> bool:
    """Waits until the other end closes the connection; False if it sends something instead."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def is_cut_off(connection: socket.socket, data: bytes) -> bool:
    """Sends something; True if the other end has aborted the connection."""
    try:
        connection.sendall(data)
    except ConnectionError:
        return True
    return False


def _more(connection: socket.socket, count: int) -> bytes:
    received = connection.recv(count)
    assert received, "the connection was closed"
    return received
