"""What uvicorn's protocol does around an answer that it did not write: timers, back-pressure, faults of ours."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from service.admission import overloaded
from service.exchange import Reply
from service.protocol import Protocol
from tests.service import hurried
from tests.service.test_protocol import Sink

HEAD = b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n"


class Crowded:
    """An application without a place, which counts those who come to it all the same."""

    def __init__(self) -> None:
        self.called = 0
        self.fault: Exception | None = None

    def turned_away(self, *_: object) -> tuple[Reply, str]:
        if self.fault is not None:
            raise self.fault
        return Reply.refused(overloaded()), "name"

    async def __call__(self, _scope: Any, _receive: Any, send: Any) -> None:
        self.called += 1
        await asyncio.sleep(0.15)  # longer than a connection is kept
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


class Caller:
    def __init__(self, app: Any) -> None:
        quiet = {"log_config": None, "access_log": False, "proxy_headers": False, "lifespan": "off"}
        config = uvicorn.Config(app, http=Protocol, timeout_keep_alive=0.05, **quiet)  # type: ignore[arg-type]  # shorter than ints
        config.load()
        self.state, self.sink = ServerState(), Sink()
        self.protocol = Protocol(config, self.state, {})
        self.protocol.connection_made(self.sink)

    def sends(self, data: bytes) -> None:
        self.protocol.data_received(data)

    @property
    def answers(self) -> bytes:
        return b"".join(self.sink.sent)


def run(work: Callable[[Crowded, Caller], Awaitable[None]]) -> None:
    async def main() -> None:
        app = Crowded()
        await work(app, Caller(app))

    hurried.run(main())


def test_a_connection_that_is_not_used_again_is_closed_whenever_its_body_came() -> None:
    async def work(app: Crowded, caller: Caller) -> None:
        for part in (HEAD, b"bo", b"dy"):
            caller.sends(part)
            assert caller.sink.closed_after is None
            await asyncio.sleep(0.02)
        assert caller.sink.closed_after is None
        await asyncio.sleep(0.1)
        assert caller.sink.closed_after == 1
        assert (app.called, caller.state.total_requests) == (0, 1)

    run(work)


def test_one_that_is_used_again_is_not_closed_under_an_answer_that_takes_longer() -> None:
    async def work(app: Crowded, caller: Caller) -> None:
        caller.sends(2 * (HEAD + b"body"))  # the second one has a task
        await asyncio.sleep(0.3)
        assert caller.answers.count(b"HTTP/1.1 429") == 1
        assert caller.answers.endswith(b"ok")
        assert app.called == 1

    run(work)


def test_a_client_that_reads_nothing_is_not_written_to_without_end() -> None:
    async def work(app: Crowded, caller: Caller) -> None:
        caller.protocol.pause_writing()
        caller.sends(HEAD + b"body")
        assert caller.answers == b""
        await asyncio.sleep(0)
        assert app.called == 1, "there it waits until somebody reads"
        caller.protocol.connection_lost(None)
        await asyncio.sleep(0.2)

    run(work)


def test_a_fault_of_ours_is_logged_and_not_told_as_the_clients(caplog: pytest.LogCaptureFixture) -> None:
    async def work(app: Crowded, caller: Caller) -> None:
        app.fault = RuntimeError("as if metrics were broken")
        with caplog.at_level(logging.ERROR):
            caller.sends(HEAD + b"body")
        await asyncio.sleep(0.2)
        assert caller.answers.endswith(b"ok")

    run(work)
    assert "as if metrics were broken" in caplog.text


def test_an_application_that_turns_nobody_away_is_asked_everything() -> None:
    async def main() -> None:
        app = Crowded()

        async def wrapped(scope: Any, receive: Any, send: Any) -> None:
            await app(scope, receive, send)

        caller = Caller(wrapped)
        caller.sends(HEAD + b"body")
        await asyncio.sleep(0.2)
        assert (app.called, caller.answers[-2:]) == (1, b"ok")

    hurried.run(main())


def test_a_large_packet_is_not_taken_for_a_long_head() -> None:
    async def work(_app: Crowded, caller: Caller) -> None:
        large = HEAD.replace(b"length: 4", b"length: 200000") + b"x" * 200_000
        caller.sends(large + HEAD[:20])
        assert b"431" not in caller.answers
        caller.sends(HEAD[20:] + b"body")
        assert caller.answers.count(b"HTTP/1.1 429") == 2

    run(work)
