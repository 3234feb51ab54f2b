"""uvicorn's HTTP/1.1 protocol, with limits that it does not have.

A request is handed to the application when it is complete and admission has given it a place; until then it costs no task. A
request that is refused is answered here. Heads and bodies have time and size limits. Head and body of an answer leave in one
packet. An `Upgrade` header is ignored (RFC 9110, 7.8). On shutdown a kept connection may send one last request.

benchmarks/ablation.py measures what each of these brings against plain uvicorn.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from service.admission import Admission, Place
from service.errors import Refusal, refusal_for
from service.exchange import Reply, Request, new_request_id

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
NEVER = float("inf")
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
    """uvicorn's parser callbacks, with requests of our own in place of its cycles until a request is started."""

    deadline = 0.0
    """When the event loop's clock passes it, `time_out` is called."""
    _in_head, _in_body, _has_begun, _head_bytes = True, False, False, 0
    _body_bytes, _unsent_bytes, _dropped_bytes = 0, 0, 0
    _leaving, _close_after_body = False, False
    _request: Request | None = None
    """The request that is received, waits or is answered."""
    _receiving: Request | None = None
    """The request whose head was parsed last; it may be behind others in `_later`, or refused already."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._gateway: Any = self.app
        self._admission: Admission = self._gateway.admission
        self._later: deque[Request] = deque()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # TCP's is one
        super().connection_made(CoalescingTransport(transport, self.loop, self._hold_unsent))  # type: ignore[arg-type]
        self.deadline = self.loop.time() + HEAD_SECONDS
        if not self._admission.connect(self):
            limit = self._admission.max_connections
            self._hang_up(Refusal("too_many_connections", f"this worker has {limit:,} connections, its limit"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._admission.disconnect(self)
        self.transport.stop()  # type: ignore[attr-defined]  # it is a CoalescingTransport
        if self._request is not None:
            self._request.is_gone = True
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
            if self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
                self._hang_up(Refusal("head_too_large", f"the head of the request is longer than {HEAD_BYTES:,} bytes"))

    def on_message_begin(self) -> None:
        self._in_head, self._has_begun, self._head_bytes = True, True, 0
        self.deadline = self.loop.time() + HEAD_SECONDS
        self.url, self.headers, self.expect_100_continue = b"", [], False

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # `data_received` parses the request once more, without that header
        self._in_head, self._in_body, self._dropped_bytes = False, True, 0
        self.deadline = self.loop.time() + self._gateway.body_seconds
        version = self.parser.get_http_version()
        keep_alive = version != "1.0" and self.parser.should_keep_alive() and not self._leaving
        method, target = self.parser.get_method().decode("ascii"), self.url
        target = target if target.startswith(b"/") else _origin_form(target)
        request = Request(self, method, target, version, self.headers, keep_alive, self.expect_100_continue)
        self._receiving = request
        if self._request is not None:
            self.flow.pause_reading()
            self._later.append(request)
        else:
            self._begin(request)

    def on_body(self, body: bytes) -> None:
        request = self._receiving
        assert request is not None  # noqa: S101  # a head comes before a body
        if request.is_refused:
            self._dropped_bytes += len(body)
            if self._dropped_bytes > DROPPED_BODIES * self._gateway.max_body_bytes(request):
                self.transport.abort()
            return
        request.body += body
        self._hold_bodies(self._body_bytes + len(body))
        try:
            self._gateway.check_length(request, len(request.body))
        except Refusal as refusal:
            self._refuse(request, refusal)

    def on_message_complete(self) -> None:
        request = self._receiving
        if self.parser.should_upgrade() or request is None:
            return
        self._in_body, request.is_complete = False, True
        if self._close_after_body:
            self.transport.close()
        elif request.is_refused:
            self.deadline = self.loop.time() + self.timeout_keep_alive
        else:
            self.deadline = NEVER
            if request is self._request:
                self._arrive(request)

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        self._request = None
        self._hold_bodies(sum(len(request.body) for request in self._later))
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self._later:
            self._begin(self._later.popleft())
        elif not (self._in_head or self._in_body):
            self.deadline = self.loop.time() + self.timeout_keep_alive

    def _begin(self, request: Request) -> None:
        """Called for every request, in order, when its head is complete and earlier ones are answered."""
        self._request = request
        try:
            self._gateway.screen(request)
        except Exception as error:  # an error of ours must not be taken for the client's by the parser
            if not isinstance(error, Refusal):
                LOG.exception("screening %s failed", request.target)
            self._refuse(request, refusal_for(error))
            return
        if request.is_complete:
            self._arrive(request)
        elif request.expects_continue:
            request.expects_continue = False
            self.transport.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")  # type: ignore[attr-defined]

    def _arrive(self, request: Request) -> None:
        lane = self._gateway.lane(request)
        if lane is None:
            self.start(request, Place(None))
        else:
            lane.arrive(request)

    def start(self, request: Request, place: Place) -> None:
        """Makes the request a task."""
        request.place = place
        path, _, query = request.target.partition(b"?")
        scope: Any = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": request.version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "method": request.method,
            "root_path": "",
            "path": request.path,
            "raw_path": path,
            "query_string": query,
            "headers": request.headers,
            "state": self.app_state.copy(),
            "sgf.request": request,
        }
        self.cycle = RequestResponseCycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=request.keep_alive,
            on_response=self.on_response_complete,
        )
        self.cycle.body, self.cycle.more_body = request.body, False
        self.cycle.message_event.set()
        request.body = bytearray()
        self._start_asgi_task(self.cycle, self.app)

    def refuse(self, request: Request, refusal: Refusal) -> None:
        """Answers a waiting request with a refusal."""
        self._refuse(request, refusal)

    def cut_off(self, refusal: Refusal) -> None:
        if self._unsent_bytes > self._body_bytes or self._receiving is None or self._receiving.is_refused:
            self._admission.hold(self, 0)
            self.transport.abort()
        else:
            self._refuse(self._receiving, refusal)

    def time_out(self) -> None:
        """The deadline has passed: for the head, for the body, or for the next request of an idle connection."""
        self.deadline = NEVER
        if self._in_body and self._receiving is not None and self._receiving is self._request:
            told = f"the body did not arrive within {self._gateway.body_seconds:g} s"
            self._refuse(self._request, Refusal("slow_body", told, closes=True))
            self.transport.close()
        elif self._in_head or self._in_body:
            self.transport.abort()
        else:
            self.transport.close()

    def shutdown(self) -> None:
        self._leaving = True
        if self._request is None:
            self.loop.call_later(LAST_REQUEST_SECONDS, self._close_if_idle)
            return
        self._request.keep_alive = False
        if self.cycle is not None:
            self.cycle.keep_alive = False
        self.loop.call_later(LAST_BODY_SECONDS, self._refuse_incomplete)

    def _close_if_idle(self) -> None:
        if self._request is None and not self.transport.is_closing():
            self.transport.close()

    def _refuse_incomplete(self) -> None:
        if self._request is not None and not self._request.is_complete:
            self._refuse(self._request, Refusal("not_ready", "the service is shutting down", closes=True))
            self.transport.close()

    def _refuse(self, request: Request, refusal: Refusal) -> None:
        if (
            self.flow.write_paused or request is not self._request
        ):  # the client does not read, or earlier answers are to come
            self.transport.abort()
            return
        request.is_refused, request.body = True, bytearray()
        keep = request.keep_alive and not request.expects_continue and not refusal.closes
        reply = Reply.refused(refusal)
        self._gateway.refused(request, reply)
        self._write(reply, request.id, keep, request.method)
        if not keep and (request.is_complete or request.expects_continue):
            self.transport.close()
        elif not keep:
            self._close_after_body = True
        self.on_response_complete()

    def _hang_up(self, refusal: Refusal) -> None:
        name = new_request_id()
        LOG.warning("closed a connection: %s", refusal, extra={"request_id": name})
        self._write(Reply.refused(refusal), name, keep=False)
        self.transport.close()

    def _write(self, reply: Reply, name: str, keep: bool, method: str = "") -> None:
        always = b"".join([b"%b: %b\r\n" % pair for pair in self.server_state.default_headers])
        end = b"" if keep else b"connection: close\r\n"
        content = b"" if method == "HEAD" else reply.content
        parts = STATUS_LINE[reply.status], always, reply.head_bytes, name.encode(), end, content
        self.transport.write_all(b"%b%b%bx-request-id: %b\r\n%b\r\n%b" % parts)  # type: ignore[attr-defined]

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

    def _hold_bodies(self, count: int) -> None:
        if count != self._body_bytes:
            self._body_bytes = count
            self._admission.hold(self, self._body_bytes + self._unsent_bytes)

    def _hold_unsent(self, count: int) -> None:
        self._unsent_bytes = count
        self._admission.hold(self, self._body_bytes + self._unsent_bytes)


def _origin_form(target: bytes) -> bytes:
    """The path and query of an absolute-form target such as `http://host?x=1` (RFC 9112, 3.2.2)."""
    parsed = httptools.parse_url(target)
    return (parsed.path or b"/") + (b"?" + parsed.query if parsed.query else b"")
