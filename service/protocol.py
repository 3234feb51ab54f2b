"""uvicorn's HTTP/1.1, with three things that it does not do.

An answer's head and body leave in one packet: uvicorn writes them one after the other, and uvloop sends each at once, two
calls of the system and two packets that the client wakes up for. A request whose head does not come is not waited for. And
on the way out a connection that a client has kept is not closed under its next request: that one is answered, as the last.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.errors import Refusal

UNREAD_SECONDS = 30.0
"""A client that reads nothing of its answer for so long is hung up on: answers that nobody reads would fill the memory."""
HEAD_SECONDS = 10.0
"""A client that does not send the head of a request within so long is hung up on: it would hold a connection for ever."""
LAST_CALL_SECONDS = 0.5
"""How long kept connections stay open after the signal to stop: a client that asks again meanwhile is told that it was the
last time, others were idle."""


class Together:
    """A transport that holds back the head of an answer until its body comes, or until the event loop comes round.

    Not the body too: while a crowd waits, a turn of the event loop is as long as reading what all of them have sent.
    Everything else is the other transport's.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._written: list[bytes] = []
        self._watch: asyncio.TimerHandle | None = None

    def write(self, data: bytes) -> None:
        self._written.append(data)
        if len(self._written) > 1:
            self._send()
        else:
            self._loop.call_soon(self._send)

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
    _in_head, _leaving = True, False
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # TCP's is one
        super().connection_made(Together(transport, self.loop))  # type: ignore[arg-type]  # all but in name
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head and self._head_timer is None:  # the usual head comes in one piece, and needs no timer
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_head_timer()
        super().on_headers_complete()
        if self._leaving:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        self._leaving = True
        if self._idle():
            self.loop.call_later(LAST_CALL_SECONDS, self._close_if_idle)
        else:
            self.cycle.keep_alive = False

    def send_400_response(self, msg: str) -> None:
        """In the shape of all errors."""
        body = orjson.dumps(Refusal("bad_http", msg).body())
        head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(head + b"content-length: %d\r\n\r\n%b" % (len(body), body))
        self.transport.close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _close_if_idle(self) -> None:
        if self._idle() and not self.transport.is_closing():
            self.transport.close()
