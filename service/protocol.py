"""uvicorn's HTTP/1.1 protocol, with limits that it does not have.

A request is handed to the application when it is complete and admission has given it a place; until then it costs no task. A
request that is refused is answered here. Heads and bodies have time and size limits. Head and body of an answer leave in one
packet. An `Upgrade` header is ignored (RFC 9110, 7.8). On shutdown a kept connection may send one last request.

benchmarks/ablation.py measures what each of these brings against plain uvicorn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from service.admission import Admission, Place
from service.errors import Refusal, refusal_for
from service.exchange import Reply, request_id

LOG = logging.getLogger("service.protocol")
UNREAD_SECONDS = 30.0
"""A connection is aborted when its client has read nothing of an answer for this long: unread answers fill the memory."""
HEAD_SECONDS = 10.0
"""Longest wait for the head of a request."""
HEAD_BYTES = 64 * 1024
DROPPED_BODIES = 16
"""Times the size limit: how much of a refused body is read and dropped, so that its sender can read the answer."""
LAST_REQUEST_SECONDS, LAST_BODY_SECONDS = 0.5, 3.0
"""How long after SIGTERM idle connections stay open, so that a request that is already on its way is answered; and how long
the body of a request may still take."""
UPGRADE_HEADERS = {b"upgrade", b"http2-settings", b"connection"}


class CoalescingTransport:
    """Holds back the head of an answer until its body is written, or until the next turn of the event loop.

    Also counts what the client has not read, and aborts a connection whose client reads nothing. Everything else is the
    wrapped transport's.
    """

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, on_unsent: Callable[[int], None]
    ) -> None:
        self._transport, self._loop, self._on_unsent = transport, loop, on_unsent
        self._written: list[bytes] = []
        self._unsent = 0
        self._watch: asyncio.TimerHandle | None = None

    def write(self, data: bytes) -> None:
        self._written.append(data)
        if len(self._written) > 1:
            self._send()
        else:
            self._loop.call_soon(self._send)

    def write_all(self, data: bytes) -> None:
        """Writes a whole answer, head and body."""
        self._written.append(data)
        self._send()

    def close(self) -> None:
        self._send()
        self._transport.close()

    def count_unsent(self, added: int = 0) -> None:
        """An answer counts as a whole until all of it is sent: so long the transport keeps it."""
        unsent = self._unsent + added if self._transport.get_write_buffer_size() else 0
        if unsent != self._unsent:
            self._unsent = unsent
            self._on_unsent(unsent)

    def stop(self) -> None:
        """The connection is lost."""
        if self._watch is not None:
            self._watch.cancel()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _send(self) -> None:
        if self._written:
            data, self._written = b"".join(self._written), []
            self._transport.write(data)
            self.count_unsent(len(data))
            if self._unsent and self._watch is None:
                self._watch_unsent()

    def _watch_unsent(self) -> None:
        before = self._transport.get_write_buffer_size()
        self._watch = self._loop.call_later(UNREAD_SECONDS, self._look_again, before) if before else None

    def _look_again(self, before: int) -> None:
        if self._transport.get_write_buffer_size() >= before:
            self._transport.abort()
        else:
            self.count_unsent()
            self._watch_unsent()


class Protocol(HttpToolsProtocol):
    arrived = 0.0
    _in_head, _in_body, _has_begun, _head_bytes = True, False, False, 0
    _body_bytes, _unsent_bytes, _dropped_bytes = 0, 0, 0
    _leaving, _close_after_body, _is_lost = False, False, False
    _timer: asyncio.TimerHandle | None = None
    _receiving: RequestResponseCycle | None = None
    """The request that is started when it is complete."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._gateway: Any = self.app
        self._admission: Admission = self._gateway.admission

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # TCP's is one
        super().connection_made(CoalescingTransport(transport, self.loop, self._hold_unsent))  # type: ignore[arg-type]
        if len(self.connections) > self._admission.max_connections:
            self._hang_up(
                Refusal("too_many_connections", f"this worker has {self._admission.max_connections:,} connections")
            )
        else:
            self._timer = self.loop.call_later(HEAD_SECONDS, self._time_out)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._stop_timer()
        self.transport.stop()  # type: ignore[attr-defined]  # it is a CoalescingTransport
        self._admission.hold(self, 0)
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        self.transport.count_unsent()  # type: ignore[attr-defined]
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        self._has_begun = False
        try:
            while data:
                try:
                    self.parser.feed_data(data)
                    break
                except httptools.HttpParserUpgrade as upgrade:
                    data = self._without_upgrade() + data[upgrade.args[0] :]
        except httptools.HttpParserError:
            if not self.transport.is_closing():
                self._hang_up(Refusal("bad_http", "the request is not HTTP/1.1: it cannot be parsed"))
            return
        if self._in_head and not self._has_begun:
            self._head_bytes += len(data)
        self._watch_request()

    def on_message_begin(self) -> None:
        self._unset_keepalive_if_required()  # here: bytes between requests must not prolong the life of a connection
        self._in_head, self._has_begun, self._head_bytes, self._dropped_bytes = True, True, 0, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # `data_received` parses the request once more, without that header
        self._in_head, self._in_body = False, True
        if not self.url.startswith(b"/"):
            self.url = _origin_form(self.url)
        super().on_headers_complete()
        if self._leaving:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        cycle = self.cycle
        if cycle.response_complete:
            self._dropped_bytes += len(body)
            if self._dropped_bytes > DROPPED_BODIES * self._gateway.max_body_bytes(cycle.scope):
                self.transport.abort()
            return
        cycle.body += body
        self._hold_bodies(self._body_bytes + len(body))
        try:
            self._gateway.check_length(cycle.scope, len(cycle.body))
        except Refusal as refusal:
            self._refuse(cycle, refusal)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._in_body = False
        super().on_message_complete()
        if self._close_after_body:
            self.transport.close()
        elif self._receiving is self.cycle:
            self._arrive()
        elif self.cycle.response_complete and not self.transport.is_closing():  # it was refused before its body was complete
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def on_response_complete(self) -> None:
        self._hold_bodies(sum(len(cycle.body) for cycle, _ in self.pipeline))
        super().on_response_complete()
        if self._in_body:
            self._unset_keepalive_if_required()  # the timer of the request runs until its body is complete

    def _start_asgi_task(self, cycle: RequestResponseCycle, _app: Any) -> None:
        """uvicorn calls this for every request, in order, when its head is complete and earlier ones are answered."""
        self._receiving = cycle
        try:
            self._gateway.screen(cycle.scope)
        except Exception as error:  # an error of ours must not be taken for the client's by the parser
            if not isinstance(error, Refusal):
                LOG.exception("screening %s failed", cycle.scope["path"])
            self._refuse(cycle, refusal_for(error))
            return
        if not cycle.more_body:
            self._arrive()
        elif cycle.waiting_for_100_continue:
            cycle.waiting_for_100_continue = False
            self.transport.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")  # type: ignore[attr-defined]

    def _arrive(self) -> None:
        lane = self._gateway.lane(self._current.scope)
        if lane is None:
            self.start(Place(None, self.loop.time()))
        else:
            lane.arrive(self)

    @property
    def _current(self) -> RequestResponseCycle:
        assert self._receiving is not None  # noqa: S101  # only called for a request that was received
        return self._receiving

    @property
    def is_gone(self) -> bool:
        return self._is_lost

    def start(self, place: Place) -> None:
        cycle, self._receiving = self._current, None
        cycle.scope["sgf.place"] = place  # type: ignore[typeddict-unknown-key]  # for the gateway
        super()._start_asgi_task(cycle, self.app)

    def refuse(self, refusal: Refusal) -> None:
        """Answers the waiting request with a refusal."""
        self._refuse(self._current, refusal)

    def cut_off(self, refusal: Refusal) -> None:
        if self._receiving is None or self._unsent_bytes > self._body_bytes:
            self._admission.hold(self, 0)
            self.transport.abort()
        else:
            self._refuse(self._receiving, refusal)

    def shutdown(self) -> None:
        self._leaving = True
        if self.cycle is None or self.cycle.response_complete:
            self.loop.call_later(LAST_REQUEST_SECONDS, self._close_if_idle)
        else:
            self.cycle.keep_alive = False
            self.loop.call_later(LAST_BODY_SECONDS, self._refuse_incomplete)

    def _refuse_incomplete(self) -> None:
        if self._in_body and self._receiving is self.cycle:
            self._refuse(self.cycle, Refusal("not_ready", "the service is shutting down", headers={"connection": "close"}))
            self.transport.close()

    def _refuse(self, cycle: RequestResponseCycle, refusal: Refusal) -> None:
        if (
            self.flow.write_paused or cycle is not self._receiving
        ):  # the client does not read, or earlier answers are to come
            self.transport.abort()
            return
        self._receiving = None
        expects, cycle.waiting_for_100_continue = cycle.waiting_for_100_continue, False
        keep = cycle.keep_alive and not expects and "connection" not in refusal.headers
        cycle.response_started = cycle.response_complete = True
        cycle.body = bytearray()
        reply = Reply.refused(refusal)
        self._gateway.refused(cycle.scope, reply)
        self._write(reply, cycle.scope["sgf.id"], keep, cycle.scope["method"])  # type: ignore[typeddict-item]
        if not keep and (expects or not self._in_body):
            self.transport.close()
        elif not keep:
            self._close_after_body = True
        self.on_response_complete()

    def _hang_up(self, refusal: Refusal) -> None:
        name = request_id({})
        LOG.warning("closed a connection: %s", refusal, extra={"request_id": name})
        self._write(Reply.refused(refusal), name, keep=False)
        self.transport.close()

    def _write(self, reply: Reply, name: str, keep: bool, method: str = "") -> None:
        headers = [*self.server_state.default_headers, *reply.head, (b"x-request-id", name.encode())]
        if not keep and "connection" not in reply.headers:
            headers.append((b"connection", b"close"))
        head = STATUS_LINE[reply.status] + b"".join([b"%b: %b\r\n" % pair for pair in headers]) + b"\r\n"
        self.transport.write_all(head if method == "HEAD" else head + reply.content)  # type: ignore[attr-defined]

    def _without_upgrade(self) -> bytes:
        """The head that was just parsed, without the wish to upgrade, for a parser that has not seen it."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            raise httptools.HttpParserError("CONNECT")
        version = self.parser.get_http_version().encode()
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        kept = [b"%b: %b\r\n" % pair for pair in self.headers if pair[0] not in UPGRADE_HEADERS]
        if any(b"close" in value.lower() for name, value in self.headers if name == b"connection"):
            kept.append(b"connection: close\r\n")
        return b"%b %b HTTP/%b\r\n%b\r\n" % (method, self.url, version, b"".join(kept))

    def _watch_request(self) -> None:
        """Limits the time and size of a request that is not complete. One that came in one piece needs no timer."""
        if self._in_head and self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self._hang_up(Refusal("head_too_large", f"the head of the request is longer than {HEAD_BYTES:,} bytes"))
        elif not (self._in_head or self._in_body):
            self._stop_timer()
        elif self._timer is None:
            seconds = HEAD_SECONDS if self._in_head else self._gateway.body_seconds
            self._timer = self.loop.call_later(seconds, self._time_out)

    def _time_out(self) -> None:
        self._timer = None
        if self._in_body and self._receiving is self.cycle:
            self._close_after_body = True
            told = f"the body did not arrive within {self._gateway.body_seconds:g} s"
            self._refuse(self.cycle, Refusal("slow_body", told, headers={"connection": "close"}))
            self.transport.close()
        else:
            self.transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _hold_bodies(self, count: int) -> None:
        if count != self._body_bytes:
            self._body_bytes = count
            self._admission.hold(self, self._body_bytes + self._unsent_bytes)

    def _hold_unsent(self, count: int) -> None:
        self._unsent_bytes = count
        self._admission.hold(self, self._body_bytes + self._unsent_bytes)

    def _close_if_idle(self) -> None:
        if (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing():
            self.transport.close()


def _origin_form(target: bytes) -> bytes:
    """The path and query of an absolute-form target such as `http://host?x=1` (RFC 9112, 3.2.2)."""
    parsed = httptools.parse_url(target)
    return (parsed.path or b"/") + (b"?" + parsed.query if parsed.query else b"")
