"""The gateway screens, answers, counts and logs every request.

The protocol calls `screen`, `lane_for`, `check_length` and `record_refusal` before a request has a task. `answer` answers
/predict, /embed and POST /graph without ASGI: routing, dependencies and response objects would cost more than the answers.
It also answers /explain, /similar and /map, whose bodies or answers may be large. FastAPI answers all other routes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from starlette.routing import Match
from starlette.types import Message, Receive, Scope, Send

from service.admission import Admission, Lane
from service.errors import Refusal
from service.explain.explainer import Explainer
from service.http.cors import Cors
from service.http.errors import HttpRefusal, refusal_for
from service.http.graph_routes import GraphChanges
from service.http.reply import GZIP_FROM_BYTES, JSON, NPY, Reply
from service.http.request import Request
from service.http.security import CHANGES, Security
from service.predict.encoding import Form
from service.predict.predictor import Predictor
from service.rollout.rollout import Rollout
from service.settings import Settings
from service.telemetry.logs import AccessLog
from service.telemetry.metrics import Metrics

LOG = logging.getLogger("service.http.gateway")
EXPLAIN, SIMILAR, MAP = "/explain", "/similar", "/map"
QUESTION_ROUTES = {"/predict", "/embed", EXPLAIN, SIMILAR}
"""Routes that take a question by POST, and wait in the lane `answers`."""
NOT_QUEUED = {"/health/live", "/health/ready", "/metrics"}
"""Routes that never wait: they are cheap, and operators need them most in an overload."""
MAX_OTHER_BYTES = 64 * 1024
"""Largest body of a route that FastAPI answers."""


class Gateway:
    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        rollout: Rollout,
        predictor: Predictor,
        admission: Admission,
        log: AccessLog,
        pages: Any,
        graph_changes: GraphChanges,
        explainer: Explainer,
    ) -> None:
        self._settings, self._metrics = settings, metrics
        self._rollout, self._predictor, self.admission = rollout, predictor, admission
        self._security, self.cors, self._log = Security(settings), Cors(settings.cors_origins), log
        self._pages, self._probation, self._graph_changes = pages, rollout.probation, graph_changes
        self._explainer = explainer
        self.body_seconds = settings.body_seconds
        self._default_headers: tuple[Any, bytes] = (None, b"")
        self._last_refusal: tuple[Any, Reply] = (None, Reply(429, b""))

    def screen(self, request: Request) -> Reply | None:
        """Checks the head of a request. Returns the reply if it needs no more than the head. Raises Refusal."""
        headers, path = request.named, request.path
        if b"host" not in headers and request.version == "1.1":
            raise HttpRefusal("bad_http", "the request has no Host header, which HTTP/1.1 requires", closes=True)
        if request.method == "OPTIONS" and (preflight := self.cors.answer_preflight(headers)):
            return preflight  # before the key is checked: a browser sends no key with a preflight request
        request.key = self._security.check(path, headers.get(b"authorization"), request.method)
        if path in QUESTION_ROUTES:
            if request.method != "POST":
                message = f"{path} takes POST, not {request.method}"
                raise HttpRefusal("method_not_allowed", message, headers={"allow": "POST"})
            self.admission.check_rate(request.key)
        if request.method == "POST":
            _check_content(headers)
            length = headers.get(b"content-length", b"0")
            self.check_length(request, int(length) if length.isdigit() else 0)
        return None

    def encode_headers(self, headers: list[tuple[bytes, bytes]], origin: bytes | None) -> bytes:
        """Encodes the headers of every response. uvicorn replaces the list once per second, when `Date` changes."""
        if self._default_headers[0] is not headers:
            self._default_headers = headers, _encode(headers)
        return self._default_headers[1] + _encode(self.cors.pairs(origin)) if self.cors.is_on else self._default_headers[1]

    def lane_for(self, request: Request) -> Lane | None:
        """The lane in which the request waits; None if it never waits."""
        if request.path in QUESTION_ROUTES:
            return self.admission.answers
        return None if request.path in NOT_QUEUED else self.admission.pages

    def max_body_bytes(self, request: Request) -> int:
        return self._settings.max_body_bytes if self.is_answered_here(request) else MAX_OTHER_BYTES

    def check_length(self, request: Request, length: int) -> None:
        """Raises Refusal (413)."""
        limit = self.max_body_bytes(request)
        if length > limit:
            raise HttpRefusal("body_too_large", f"the body is larger than {limit:,} bytes", closes=True, limit=limit)

    def record_refusal(self, request: Request, reply: Reply) -> None:
        """Counts and logs a request that the protocol has answered without a task."""
        route = request.path
        if route not in QUESTION_ROUTES or request.method == "OPTIONS":  # FastAPI routes it
            route = self._route({"type": "http", "method": request.method, "path": route, "headers": []})
        if reply.status == 429 and route in QUESTION_ROUTES:  # the log has one line for many of these (`admission`)
            self._metrics.record_response(route, 429, time.perf_counter() - request.started)
        else:
            self._record(request, route, reply.status, len(reply.content), reply.error)

    def reply_early(self, refusal: Refusal, route: str) -> Reply:
        """Counts a request that admission refuses as it arrives, and returns its reply, which equal refusals share."""
        self._metrics.record_response(route, 429, 0.0)
        if self._last_refusal[0] is not refusal:
            self._last_refusal = refusal, Reply.for_refusal(refusal)
        return self._last_refusal[1]

    def is_answered_here(self, request: Request) -> bool:
        """True if `answer` answers this request; False if FastAPI does."""
        has_path = request.path in QUESTION_ROUTES or (request.path == MAP and request.method in ("GET", "HEAD"))
        return has_path or (request.path == CHANGES and request.method == "POST")

    async def answer(self, request: Request) -> None:
        """Answers the routes of `QUESTION_ROUTES`, /map and POST /graph. Every failure becomes a reply."""
        try:
            reply = await self._reply(request)
            if (
                request.path != CHANGES
                and self._probation.version is not None
                and (reply.status == 200 or reply.error == "internal")
            ):
                self._probation.record_answer(failed=reply.status != 200)  # other refusals are not the version's fault
            if len(reply.content) >= GZIP_FROM_BYTES and request.accepts(b"accept-encoding", b"gzip"):
                reply = await reply.compressed()
            request.connection.reply(request, reply)
        finally:
            request.slot.release()
        self._record(request, request.path, reply.status, len(reply.content), reply.error)

    async def _reply(self, request: Request) -> Reply:
        try:
            if request.path == CHANGES:
                return await self._graph_changes.reply(request)
            if request.path in (EXPLAIN, SIMILAR, MAP):
                methods = {EXPLAIN: self._explainer.explain, SIMILAR: self._explainer.similar, MAP: self._explainer.map}
                answer = await methods[request.path](self._rollout.current, request)
                return Reply(200, answer.content, JSON, answer.headers)
            npy = request.path == "/embed" and request.accepts(b"accept", NPY.encode())
            form: Form = "predictions" if request.path == "/predict" else "npy" if npy else "embeddings"
            answer = await self._predictor.answer(self._rollout.current, request, form)
        except (Exception, asyncio.CancelledError) as error:  # every request gets an answer
            return self._reply_for(request, error)
        if not npy:
            return Reply(200, answer.content, JSON, answer.headers)
        origin = {f"x-sgf-{name.replace('_', '-')}": str(value) for name, value in answer.origin.items()}
        return Reply(200, answer.content, NPY, answer.headers | origin)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application: all routes of FastAPI, and the lifespan."""
        if scope["type"] != "http":
            await self._pages(scope, receive, send)
            return
        request: Request = scope["sgf.request"]
        if request.method == "HEAD" and not request.path.startswith("/admin"):  # an event stream has no end
            scope = {**scope, "method": "GET"}  # uvicorn sends no body for HEAD
        if request.method == "POST" and b"content-type" not in request.named:
            scope["headers"] = [*scope["headers"], (b"content-type", JSON.encode())]
        status, sent, error = 0, 0, None

        async def count_and_send(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                request.slot.release()  # an event stream may last for hours
                status = message["status"]
                added = (b"x-request-id", request.id.encode()), *self.cors.pairs(request.named.get(b"origin"))
                message["headers"] = [*message.get("headers", []), *added]
            sent += len(message.get("body", b""))
            await send(message)

        try:
            await self._pages(scope, receive, count_and_send)
        except (Exception, asyncio.CancelledError) as failure:  # every request gets an answer
            reply = self._reply_for(request, failure)
            if status == 0:
                status, sent, error = reply.status, len(reply.content), reply.error
                request.connection.reply(request, reply)
        finally:
            request.slot.release()
        self._record(request, self._route(scope), status, 0 if request.method == "HEAD" else sent, error)

    def _route(self, scope: Scope) -> str:
        """The template of the route, such as /nodes/{node_id}, so that metrics have few labels. The scope of a refused
        request does not have it yet.
        """
        route = scope.get("route")
        if route is None:
            route = next((route for route in self._pages.routes if route.matches(scope)[0] is Match.FULL), None)
        return getattr(route, "path_format", None) or getattr(route, "path", None) or "other"

    def _reply_for(self, request: Request, error: BaseException) -> Reply:
        refusal = refusal_for(error)
        if refusal.code == "internal":
            LOG.error("%s %s failed", request.method, request.path, exc_info=error, extra={"request_id": request.id})
        return Reply.for_refusal(refusal)

    def _record(self, request: Request, route: str, status: int, sent: int, error: str | None) -> None:
        seconds = time.perf_counter() - request.started
        self._metrics.record_response(route, status, seconds)
        client = request.connection.client
        self._log.write(
            request_id=request.id,
            client=client and client[0],
            key=request.key,
            method=request.method,
            route=route,
            code=status,
            milliseconds=round(seconds * 1000, 3),
            bytes=sent,
            error=error,
        )


def _encode(headers: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join([b"%b: %b\r\n" % pair for pair in headers])


def _check_content(headers: dict[bytes, bytes]) -> None:
    kind = headers.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
    coding = headers.get(b"content-encoding", b"identity").lower()
    if kind != b"application/json":
        problem = f"the content type is {_quote(kind)}, expected {JSON}"
    elif coding not in (b"gzip", b"identity"):
        problem = f"the content encoding is {_quote(coding)}, expected gzip or none"
    else:
        return
    raise Refusal("unsupported_media_type", problem)


def _quote(value: bytes) -> str:
    return repr(value.decode("latin-1")[:60])
