"""Variants of the service's HTTP protocol, each without one of its parts, for `benchmarks.groups.ablation`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.http import protocol
from service.http.protocol import Protocol
from service.http.reply import Reply
from service.http.request import Request

NEVER_SECONDS = 1e6


class Plain(HttpToolsProtocol):
    """uvicorn's own protocol. The application receives every request immediately, through ASGI."""

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        async def answer(scope: Any, receive: Any, send: Any) -> None:
            replies: list[Reply] = []
            connection: Any = SimpleNamespace(
                client=self.client, loop=self.loop, reply=lambda _request, reply: replies.append(reply)
            )
            request = Request(connection, scope["method"], scope["raw_path"], scope["http_version"], scope["headers"])
            app.screen(request)
            if not app.is_answered_here(request):
                scope["sgf.request"] = request
                await app(scope, receive, send)
                return
            more = True
            while more:
                message = await receive()
                request.body += message.get("body", b"")
                more = message.get("more_body", False)
            await app.answer(request)
            named = {"content-type": replies[0].media_type, "content-length": str(len(replies[0].content))}
            headers = [(name.encode(), value.encode()) for name, value in (named | replies[0].headers).items()]
            await send({"type": "http.response.start", "status": replies[0].status, "headers": headers})
            await send({"type": "http.response.body", "body": replies[0].content})

        super()._start_asgi_task(cycle, answer)


class WithoutQueue(Protocol):
    """Every request becomes a task immediately, without a queue, so that the service is never overloaded."""

    def _arrive(self, request: Request) -> None:
        self.start(request)


class WithoutOnePacket(Protocol):
    """Writes head and body of a response separately."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.transport = _SplittingTransport(transport)  # type: ignore[assignment]  # a proxy of the transport


class _SplittingTransport:
    def __init__(self, transport: Any) -> None:
        self._transport = transport

    def write(self, data: bytes) -> None:
        head, end, body = data.partition(b"\r\n\r\n")
        self._transport.write(head + end)
        self._transport.write(body)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class WithoutTimers(Protocol):
    """Heads have no time limit. For bodies, SGF_BODY_SECONDS has the same effect."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        protocol.HEAD_SECONDS = NEVER_SECONDS


class WithoutLastRequest(Protocol):
    """Closes idle connections immediately on shutdown."""

    def shutdown(self) -> None:
        if self._request is None:
            self.transport.close()
        else:
            super().shutdown()
