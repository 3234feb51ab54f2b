"""uvicorn's HTTP/1.1 protocol, with limits that uvicorn lacks.

A request becomes a task when it is complete and admission has given it a slot. A refused request never becomes one. A
usual request (`usual_head`) that arrives in one piece is not parsed if an equal head has been parsed before. The answers of
the gateway itself are written in one packet, without ASGI; all other routes run as in uvicorn. Heads, bodies and unread
answers have limits of time and size. On shutdown a keep-alive connection may send one last request.

benchmarks/groups/ablation.py measures each of these against plain uvicorn.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.admission import Admission
from service.errors import Code, Refusal
from service.http.errors import HttpRefusal, refusal_for
from service.http.reply import Reply
from service.http.request import Head, Request, asgi_cycle, head_without_upgrade, new_request_id, origin_form, usual_head

LOG = logging.getLogger("service.http.protocol")
UNREAD_SECONDS = 30.0
"""A connection is aborted when its client has read nothing of an answer for this long: unread answers fill the memory."""
HEAD_SECONDS = 10.0
"""Longest wait for the head of a request."""
HEAD_BYTES = 64 * 1024
WRITE_BUFFER_BYTES = 16 * 1024
"""Unsent bytes of a connection from which they count against the budget of bytes."""
SMALL_BODY_BYTES = 4096
"""A body up to this size does not count against the budget: the small bodies of all connections fill little memory."""
DROPPED_BODIES = 16
"""A refused body is read and dropped, up to this many times the size limit, so that the client can read the response."""
LAST_REQUEST_SECONDS, LAST_BODY_SECONDS = 0.5, 3.0
"""After SIGTERM: how long an idle connection stays open, so that a request that is already on its way is answered; and how
long the body of a request may still take."""
NEVER = float("inf")


class Protocol(HttpToolsProtocol):
    """One connection. The parser calls `on_...`; a request runs as a task of the gateway, or as an ASGI cycle of uvicorn."""

    # The attributes that a refusal reads and writes are slots, in one block of memory. In the dictionaries of thousands of
    # instances, each attribute would cost a cache miss or two: together as much time as the system calls.
    __slots__ = (
        "_answers", "_gateway", "_in_body", "_in_head", "_is_shutting_down", "_request", "_unsent_bytes", "deadline",
        "loop", "server_state", "timeout_keep_alive", "transport",
    )  # fmt: skip
    _has_begun = _close_after_body = False
    """A request began in the data that is parsed now; the connection closes when the body of a refused request has
    arrived."""
    _head_bytes = _body_bytes = _dropped_bytes = _unread_before = 0
    _receiving: Request | None = None
    """The request whose head was parsed last. It may wait behind others in `_later`, or be refused already."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._gateway: Any = self.app
        self._admission: Admission = self._gateway.admission
        self._answers = self._admission.answers
        self.deadline = 0.0
        """When the event loop's clock passes it, `time_out` is called."""
        self._in_head = self._in_body = self._is_shutting_down = False
        self._unsent_bytes = 0
        """0 unless the transport has paused writing."""
        self._request: Request | None = None
        """The request that is received, waits or is answered."""
        self._later: deque[Request] = deque()
        """Requests that the client sent before the answer to `_request` (pipelining)."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # narrower: TCP has one
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.deadline = self.loop.time() + HEAD_SECONDS
        if not self._admission.connect(self):
            limit = self._admission.max_connections
            self._hang_up(Refusal("too_many_connections", f"this worker has {limit:,} connections, its limit"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._admission.disconnect(self)
        if self._request is not None:
            self._request.lose()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._hold(self._body_bytes, self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._hold(self._body_bytes, 0)
        if self._is_idle:
            self.deadline = self.loop.time() + self.timeout_keep_alive

    def data_received(self, data: bytes) -> None:
        if self._request is None and not (self._in_head or self._in_body) and (head := usual_head(data)):
            self._receive_usual(head, data)
        else:
            self._parse(data)

    def _receive_usual(self, head: Head, data: bytes) -> None:
        """Receives a whole request whose head is parsed already. Does not use the parser, which is between two messages."""
        answers = self._answers
        if answers.is_overloaded and (refusal := answers.shed()):
            self._refuse_early(head, refusal)
            return
        if head.body_bytes > SMALL_BODY_BYTES:
            self._parse(data)  # counts the body against the budget
            return
        request = Request(self, "POST", head.target, "1.1", head.headers, not self._is_shutting_down, head=head)
        request.body, request.is_complete = data[head.size :], True
        self._receiving, self.deadline = request, NEVER
        self._begin(request)

    def _refuse_early(self, head: Head, refusal: Refusal) -> None:
        """Kept short: in an overload, a worker does little else."""
        if self._unsent_bytes:
            self.transport.abort()
            return
        reply = self._gateway.reply_early(refusal, head.path)
        headers = self._gateway.encode_headers(self.server_state.default_headers, head.origin)
        self.transport.write(reply.encode(headers, head.id, not self._is_shutting_down))
        self.deadline = self.loop.time() + self.timeout_keep_alive
        if self._is_shutting_down:
            self.transport.close()

    @property
    def _is_idle(self) -> bool:
        return self._request is None and not (self._in_head or self._in_body)

    def _parse(self, data: bytes) -> None:
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
                self._hang_up(Refusal("bad_http", "the request cannot be parsed as HTTP/1.0 or HTTP/1.1"))
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
            return  # `_parse` parses the request again, without that header
        self._in_head, self._in_body, self._dropped_bytes = False, True, 0
        self.deadline = self.loop.time() + self._gateway.body_seconds
        version = self.parser.get_http_version()
        keep_alive = version != "1.0" and self.parser.should_keep_alive() and not self._is_shutting_down
        method, target = self.parser.get_method().decode("ascii"), origin_form(self.url)
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
        if len(request.body) > SMALL_BODY_BYTES:
            self._hold(self._body_bytes + len(body), self._unsent_bytes)
        try:
            self._gateway.check_length(request, len(request.body))
        except Refusal as refusal:
            self.refuse(request, refusal)

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
        self._release_body()
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self._later:
            self._begin(self._later.popleft())
        elif self.flow.write_paused:
            self._unread_before, self.deadline = self.transport.get_write_buffer_size(), self.loop.time() + UNREAD_SECONDS
        elif self._is_idle:
            self.deadline = self.loop.time() + self.timeout_keep_alive

    def _begin(self, request: Request) -> None:
        """Called for every request, in order, when its head is complete and earlier requests are answered."""
        self._request = request
        try:
            early = self._gateway.screen(request)
        except Exception as error:  # the parser would report our own error as the client's
            if not isinstance(error, Refusal):
                LOG.exception("screening %s failed", request.target)
            self.refuse(request, refusal_for(error))
            return
        if early is not None:
            self._reply_early(request, early, closes=False)
        elif request.is_complete:
            self._arrive(request)
        elif request.expects_continue:
            request.expects_continue = False
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _arrive(self, request: Request) -> None:
        if lane := self._gateway.lane_for(request):
            lane.arrive(request)
        else:
            self.start(request)

    def start(self, request: Request) -> None:
        """Makes the request a task. From now on its body does not count against the budget."""
        self._release_body()
        if self._gateway.is_answered_here(request):
            task = self.loop.create_task(self._gateway.answer(request))
            task.add_done_callback(self.tasks.discard)
            self.tasks.add(task)
            return
        self.cycle = asgi_cycle(self, request)
        self.cycle.body, self.cycle.more_body = bytearray(request.body), False
        self.cycle.message_event.set()
        request.body = bytearray()
        self._start_asgi_task(self.cycle, self.app)

    def reply(self, request: Request, reply: Reply) -> None:
        """Writes the answer of a request that runs."""
        if request.is_gone:
            return
        if self.cycle is not None:  # an ASGI route that failed
            self.cycle.response_started = self.cycle.response_complete = True
        self._write(reply, request.id.encode(), request.keep_alive, request.method, request.named.get(b"origin"))
        if not request.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def refuse(self, request: Request, refusal: Refusal) -> None:
        """Answers a request that does not run.

        Aborts the connection instead if the client does not read its answers, or if earlier requests of the connection are
        not answered yet: answers have the order of requests.
        """
        if self.flow.write_paused or request is not self._request:
            self.transport.abort()
            return
        self._reply_early(request, Reply.for_refusal(refusal), isinstance(refusal, HttpRefusal) and refusal.closes)

    def _reply_early(self, request: Request, reply: Reply, closes: bool) -> None:
        """Replies without a task, and drops the body, which may not have arrived yet."""
        request.is_refused, request.body = True, bytearray()
        keep = request.keep_alive and not request.expects_continue and not closes
        self._gateway.record_refusal(request, reply)
        self._write(reply, request.id.encode(), keep, request.method, request.named.get(b"origin"))
        if not keep and (request.is_complete or request.expects_continue):
            self.transport.close()
        self._close_after_body = not keep
        self.on_response_complete()

    def cut_off(self, refusal: Refusal) -> None:
        """Frees the bytes that the connection holds: refuses the body, or aborts if most of the bytes are an unread
        answer.
        """
        if self._unsent_bytes > self._body_bytes or self._receiving is None or self._receiving.is_refused:
            self._admission.hold(self, 0)
            self.transport.abort()
        else:
            self.refuse(self._receiving, refusal)

    def time_out(self) -> None:
        """The deadline has passed: for the head, for the body, for reading an answer, or for the next request."""
        self.deadline = NEVER
        if self.flow.write_paused:
            self._time_out_reader()
        elif self._in_body and self._request is not None and self._receiving is self._request:
            self._give_up("slow_body", f"the body did not arrive within {self._gateway.body_seconds:g} s")
        elif self._in_head or self._in_body:
            self.transport.abort()
        else:
            self.transport.close()

    def _time_out_reader(self) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread >= self._unread_before:
            self.transport.abort()
        else:
            self._unread_before, self.deadline = unread, self.loop.time() + UNREAD_SECONDS

    def shutdown(self) -> None:
        self._is_shutting_down = True
        if self._request is None:
            self.loop.call_later(LAST_REQUEST_SECONDS, self._close_if_unused)
            return
        self._request.keep_alive = False
        if self.cycle is not None:
            self.cycle.keep_alive = False
        self.loop.call_later(LAST_BODY_SECONDS, self._refuse_incomplete)

    def _close_if_unused(self) -> None:
        if self._request is None and not self.transport.is_closing():
            self.transport.close()

    def _refuse_incomplete(self) -> None:
        if self._request is not None and not self._request.is_complete:
            self._give_up("not_ready", "the service is shutting down")

    def _give_up(self, code: Code, message: str) -> None:
        """Refuses the request whose body has not arrived, and closes the connection."""
        assert self._request is not None  # noqa: S101  # both callers have checked
        self.refuse(self._request, HttpRefusal(code, message, closes=True))
        self.transport.close()

    def _hang_up(self, refusal: Refusal) -> None:
        name = new_request_id()
        LOG.warning("closed a connection: %s", refusal, extra={"request_id": name.decode()})
        self._write(Reply.for_refusal(refusal), name, keep=False)
        self.transport.close()

    def _write(self, reply: Reply, request_id: bytes, keep: bool, method: str = "", origin: bytes | None = None) -> None:
        headers = self._gateway.encode_headers(self.server_state.default_headers, origin)
        data, unsent = reply.encode(headers, request_id, keep, method != "HEAD"), self._unsent_bytes
        self.transport.write(data)
        if self.flow.write_paused:  # the transport keeps all of it until the last byte is sent
            self._hold(self._body_bytes, unsent + len(data))

    def _without_upgrade(self) -> bytes:
        """Makes a new parser, and returns the head that was just parsed, without `Upgrade`, for it."""
        method, version = self.parser.get_method(), self.parser.get_http_version()
        if method == b"CONNECT":
            raise httptools.HttpParserError("CONNECT")
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return head_without_upgrade(method, self.url, version, self.headers)

    def _release_body(self) -> None:
        """Only the bodies of later requests count against the budget from now on."""
        if self._body_bytes:
            self._hold(sum(len(later.body) for later in self._later), self._unsent_bytes)

    def _hold(self, body_bytes: int, unsent_bytes: int) -> None:
        self._body_bytes, self._unsent_bytes = body_bytes, unsent_bytes
        self._admission.hold(self, body_bytes + unsent_bytes)
