"""Variants of the service's HTTP protocol, each without one of its parts, for `benchmarks.ablation`."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service import protocol
from service.protocol import Protocol

NEVER_SECONDS = 1e6


class Plain(HttpToolsProtocol):
    """uvicorn's own protocol. The application gets every request at once."""

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if hasattr(app, "screen"):  # the application expects what the service's protocol puts into the scope
            app.screen(cycle.scope)
            cycle.scope["sgf.place"] = _place(self.loop)
        super()._start_asgi_task(cycle, app)


class WithoutQueue(Protocol):
    """Every request becomes a task at once; none waits, or is refused, before that."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._door = None

    def _arrive(self) -> None:
        self.start(_place(self.loop))


class WithoutCoalescing(Protocol):
    """Head and body of an answer are written one after the other."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.transport.write = transport.write  # type: ignore[method-assign]  # of the wrapper: nothing is held back


class WithoutTimers(Protocol):
    """Heads may take for ever. For bodies, SGF_BODY_SECONDS has the same effect."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        protocol.HEAD_SECONDS = NEVER_SECONDS


class WithoutLastRequest(Protocol):
    """Idle connections are closed at once on shutdown."""

    shutdown = HttpToolsProtocol.shutdown


def _place(loop: asyncio.AbstractEventLoop) -> Any:
    """A place that is in no lane, as for requests that need no admission."""
    from service.admission import Place

    return Place(None, loop.time())
