"""The door: every request passes here, gets an id, is let in or refused, counted and logged, and leaves in one shape.

/predict and /embed are answered here, as plain ASGI: routing, dependencies and response objects would cost more than the
answers. Everything else is FastAPI's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Hashable, MutableMapping, Sequence
from typing import Any

from starlette.routing import Match

from service.admission import Admission, overloaded
from service.answering import Answering, Form
from service.errors import Refusal, refusal_for
from service.exchange import Exchange, Receive, Reply, Scope, Send, replayed, request_id
from service.logs import AccessLog
from service.metrics import Metrics
from service.rollout import Rollout
from service.security import Security
from service.settings import Settings

LOG = logging.getLogger("service.gateway")
NPY = "application/x-npy"
ANSWERED_HERE = {"/predict", "/embed"}
MAX_ADMIN_BYTES = 64 * 1024


class Gateway:
    """The ASGI application."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        rollout: Rollout,
        answering: Answering,
        admission: Admission,
        log: AccessLog,
        pages: Any,
    ) -> None:
        self._settings, self._metrics = settings, metrics
        self._rollout, self._answering, self._admission = rollout, answering, admission
        self._security, self._log = Security(settings), log
        self._pages, self._probation = pages, rollout.probation
        self._no_place = Reply.refused(overloaded())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._pages(scope, receive, send)  # lifespan; websockets are refused there
            return
        start = time.perf_counter()
        exchange = Exchange(scope, receive, send)
        if exchange.path in ANSWERED_HERE:
            reply = await self._answered(exchange)
            if self._probation.watched is not None and (reply.status == 200 or reply.error == "internal"):
                self._probation.answered(failed=reply.status != 200)  # what was refused says nothing about a version
            sent = await exchange.reply(reply)
            self._finished(exchange.request_id, exchange.method, exchange.path, reply.status, start, sent, reply.error)
            return
        if exchange.method == "HEAD" and not exchange.path.startswith("/admin"):  # where a page may be a stream without end
            scope = {**scope, "method": "GET"}  # the server, which knows that it was HEAD, sends no body
        status, sent, error = await self._paged(scope, receive, send, exchange)
        sent = 0 if exchange.method == "HEAD" else sent
        self._finished(exchange.request_id, exchange.method, self._route(scope), status, start, sent, error)

    def turned_away(
        self, caller: Hashable, method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]]
    ) -> tuple[Reply, str] | None:
        """The answer for a request that there is no place for, and its id, from its head alone.

        In a crowd most are refused: a task for each would cost those in hand more than their own answers.
        """
        start, path = time.perf_counter(), target.decode("latin-1")
        if path not in ANSWERED_HERE or method != "POST":
            return None
        given = dict(headers)
        try:
            self._security.check(path, given.get(b"authorization"))
        except Refusal:
            return None  # and hears that on the way of all others, and takes nobody's place
        if self._admission.announce(caller):
            return None
        self._admission.turn_away()
        reply, name = self._no_place, request_id(given)
        self._finished(name, method, path, reply.status, start, len(reply.content), reply.error)
        return reply, name

    async def _answered(self, exchange: Exchange) -> Reply:
        try:
            if exchange.method != "POST":
                raise Refusal("method_not_allowed", f"{exchange.path} takes POST", headers={"allow": "POST"})
            self._security.check(exchange.path, exchange.headers.get(b"authorization"))
            with self._admission.receiving:
                body = await exchange.body(self._settings.max_body_bytes)
            with self._admission.answering:
                return await self._reply(exchange, body)
        except (Exception, asyncio.CancelledError) as error:  # every request gets an answer
            return self._refused(exchange, error)

    async def _reply(self, exchange: Exchange, body: bytes) -> Reply:
        npy = exchange.path == "/embed" and exchange.wants(NPY.encode())
        form: Form = "predictions" if exchange.path == "/predict" else "npy" if npy else "embeddings"
        answer = await self._answering.answer(self._rollout.current, body, form, exchange.gone)
        if not npy:
            return Reply(200, answer.content)
        return Reply(200, answer.content, NPY, {f"x-sgf-{name}": str(value) for name, value in answer.origin.items()})

    async def _paged(self, scope: Scope, receive: Receive, send: Send, exchange: Exchange) -> tuple[int, int, str | None]:
        status, sent = 0, 0

        async def counted(message: MutableMapping[str, Any]) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), (b"x-request-id", exchange.request_id.encode())]
            sent += len(message.get("body", b""))
            await send(message)

        try:
            self._security.check(exchange.path, exchange.headers.get(b"authorization"))
            if exchange.path.startswith("/admin") and exchange.method == "POST":
                # FastAPI would read a body of any size; this one is read within limits, and handed on.
                with self._admission.receiving_orders:
                    body = await exchange.body(MAX_ADMIN_BYTES)
                receive = replayed(body, receive)
                scope["headers"] = [*scope["headers"], (b"content-type", b"application/json")]  # it said that, or nothing
            await self._pages(scope, receive, counted)
        except (Exception, asyncio.CancelledError) as error:  # every request gets an answer, here too
            reply = self._refused(exchange, error)
            if status == 0:
                return reply.status, await exchange.reply(reply), reply.error
        return status, sent, None

    def _route(self, scope: Scope) -> str:
        """As it is declared, so that metrics have few of them. A request that was refused at the door has not met it yet."""
        found = scope.get("route")
        if found is None:
            matching = (one for one in self._pages.routes if one.matches(scope)[0] is Match.FULL)
            found = next(matching, None)
        return getattr(found, "path", None) or "other"

    def _refused(self, exchange: Exchange, error: BaseException) -> Reply:
        refusal = refusal_for(error)
        if refusal.code == "internal":
            LOG.error(
                "%s %s failed", exchange.method, exchange.path, exc_info=error, extra={"request_id": exchange.request_id}
            )
        return Reply.refused(refusal)

    def _finished(self, name: str, method: str, route: str, status: int, start: float, sent: int, error: str | None) -> None:
        seconds = time.perf_counter() - start
        self._metrics.answered(route, status, seconds)
        self._log.write(name, method, route, status, seconds, sent, error)
