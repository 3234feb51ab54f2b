"""uvicorn's HTTP/1.1, with four things that it does not do.

An answer's head and body leave in one packet: uvicorn writes them one after the other, and uvloop sends each at once, two
calls of the system and two packets that the client wakes up for. A request whose head does not come is not waited for. And
on the way out a connection that a client has kept is not closed under its next request: that one is answered, as the last.
In a crowd, whoever there is no place for is told so here: no task is made for it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from service.errors import Refusal
from service.exchange import Reply, request_id

LOG = logging.getLogger("service.protocol")
UNREAD_SECONDS = 30.0
"""A client that reads nothing of its answer for so long is hung up on: answers that nobody reads would fill the memory."""
HEAD_SECONDS = 10.0
"""A client that does not send the head of a request within so long is hung up on: it would hold a connection for ever."""
HEAD_BYTES = 64 * 1024
"""A head that has not ended after so much is refused: it is kept until it ends."""
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


class Answered:
    """In place of uvicorn's cycle, of a request that was answered without one. What still comes of its body is dropped."""

    response_complete = True
    message_event = asyncio.Event()  # which nobody waits for


ANSWERED: Any = Answered()


class Protocol(HttpToolsProtocol):
    _in_head, _head_bytes, _leaving = True, 0, False
    _has_begun, _has_turned_away = False, False
    """In the packet at hand: a request."""
    _head_timer: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._door = getattr(self.app, "turned_away", None)  # uvicorn wraps the application where it traces messages

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # TCP's is one
        super().connection_made(Together(transport, self.loop))  # type: ignore[arg-type]  # all but in name
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._has_begun = self._has_turned_away = False
        super().data_received(data)
        if self._in_head:  # the usual head comes in one piece, and needs no timer
            self._wait_for_head(0 if self._has_begun else len(data))
        elif self._idle() and self.timeout_keep_alive_task is None and not self.transport.is_closing():
            # What came was of a body that nobody waits for, and uvicorn stopped its timer.
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes, self._has_begun = True, 0, True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_head_timer()
        if self._turns_away():
            return
        self._unset_keepalive_if_required()  # of one that came in the same packet, and was turned away
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
        self._hang_up(Refusal("bad_http", msg, headers={"connection": "close"}))

    def _wait_for_head(self, received: int) -> None:
        self._head_bytes += received
        if self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            told = f"the head of the request is longer than {HEAD_BYTES:,} bytes"
            self._hang_up(Refusal("head_too_large", told, headers={"connection": "close"}))
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _hang_up(self, refusal: Refusal) -> None:
        name = request_id({})
        LOG.warning("refused, and hung up: %s", refusal, extra={"request_id": name})
        self._write(Reply.refused(refusal), name)
        self.transport.close()

    def _turns_away(self) -> bool:
        """Answers a request that there is no place for. Those that need more than an answer go the way of all others."""
        if self._door is None or not self._is_plain():
            return False
        try:
            answer = self._door(self, self.parser.get_method().decode("ascii"), self.url, self.headers)
        except Exception:  # our own fault, which the parser would take for the client's
            LOG.exception("a request could not be turned away")
            return False
        if answer is None:
            return False
        self.cycle, self._has_turned_away = ANSWERED, True
        self._write(*answer)
        self.on_response_complete()
        return True

    def _is_plain(self) -> bool:
        """Nothing to wait for: not for an earlier answer, nor for a client that reads, nor for many heads in one packet."""
        if not self._idle() or self._has_turned_away or self._leaving or self.flow.write_paused:
            return False
        if self.expect_100_continue or self.parser.should_upgrade():
            return False
        return self.parser.get_http_version() == "1.1" and self.parser.should_keep_alive()

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
