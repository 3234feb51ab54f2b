"""uvicorn's HTTP/1.1, with an answer's head and body in one packet.

uvicorn writes them one after the other, and uvloop sends each at once: two calls of the system, and two packets that the
client wakes up for. Here what is written to a connection leaves together, when the event loop comes round.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

UNREAD_SECONDS = 30.0
"""A client that reads nothing of its answer for so long is hung up on: answers that nobody reads would fill the memory."""


class Together:
    """A transport that sends what was written since the event loop last came round. Everything else is the other's."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._written: list[bytes] = []
        self._watch: asyncio.TimerHandle | None = None

    def write(self, data: bytes) -> None:
        if not self._written:
            self._loop.call_soon(self._send)
        self._written.append(data)

    def close(self) -> None:
        self._send()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _send(self) -> None:
        if self._written:
            written, self._written = self._written, []
            self._transport.write(b"".join(written))
            self._watch_unread()

    def _watch_unread(self) -> None:
        unread = self._transport.get_write_buffer_size()
        if unread and self._watch is None:
            self._watch = self._loop.call_later(UNREAD_SECONDS, self._look_again, unread)

    def _look_again(self, before: int) -> None:
        self._watch = None
        if self._transport.get_write_buffer_size() >= before:
            self._transport.abort()
        else:
            self._watch_unread()


class Protocol(HttpToolsProtocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # TCP's is one
        super().connection_made(Together(transport, self.loop))  # type: ignore[arg-type]  # all but in name
