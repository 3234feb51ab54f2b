"""uvicorn's HTTP/1.1, with four things that it does not do.

An answer's head and body leave in one packet: uvicorn writes them one after the other, and uvloop sends each at once, two
calls of the system and two packets that the client wakes up for. A request whose head does not come is not waited for. And
on the way out a connection that a client has kept is not closed under its next request: that one is answered, as the last.
In a crowd, whoever there is no place for is told so here: no task is made for it.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from service.errors import Refusal
from service.exchange import Reply, request_id

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

    def write_all(self, data: bytes) -> None:
        """A whole answer, head and body."""
        self._written.append(data)
        self._send()

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


ANSWERED: Any = SimpleNamespace(response_complete=True, message_event=asyncio.Event())
"""In place of uvicorn's cycle, of a request that was answered without one. What still comes of its body is dropped."""


class Protocol(HttpToolsProtocol):
    _in_head, _leaving = True, False
    _head_timer: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._turned_away = getattr(self.app, "turned_away", None)  # uvicorn wraps the application where it traces messages

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
        if self._turns_away():
            return
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
        reply = Reply.refused(Refusal("bad_http", msg, headers={"connection": "close"}))
        self._write(reply, request_id({}))
        self.transport.close()

    def _turns_away(self) -> bool:
        """Answers a request that there is no place for. Those that need more than an answer go the way of all others."""
        if self._turned_away is None or not self._idle() or self._leaving:
            return False
        if self.expect_100_continue or self.parser.should_upgrade():
            return False
        if self.parser.get_http_version() != "1.1" or not self.parser.should_keep_alive():
            return False
        answer = self._turned_away(self.parser.get_method().decode("ascii"), self.url, self.headers)
        if answer is None:
            return False
        self.cycle = ANSWERED
        self._write(*answer)
        self.on_response_complete()
        return True

    def _write(self, reply: Reply, name: str) -> None:
        head = b"".join([b"%b: %b\r\n" % one for one in reply.head])
        head = b"%bx-request-id: %b\r\n%b\r\n" % (STATUS_LINE[reply.status], name.encode(), head)
        self.transport.write_all(head + reply.content)  # type: ignore[attr-defined]  # it is Together

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _close_if_idle(self) -> None:
        if self._idle() and not self.transport.is_closing():
            self.transport.close()
