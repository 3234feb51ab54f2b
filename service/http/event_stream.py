"""The events of a job as server-sent events, which a browser or `curl -N` shows as they come."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import ClassVar

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from model_store.run_contract import RunEvent
from service.errors import Refusal
from service.http.errors import refusal_for
from service.jobs.ledger import JobError, Ledger

POLL_SECONDS, KEEP_ALIVE_SECONDS = 0.5, 15.0
MAX_STREAMS = 32
"""Most open streams of a worker. Each uses a thread of the pool four times per second; /admin and /models use the same
pool."""


class EventStream(StreamingResponse):
    open_streams: ClassVar[int] = 0

    def __init__(self, ledger: Ledger, job_id: str, last_event_id: int) -> None:
        lines = events(ledger, job_id, last_event_id)
        super().__init__(lines, media_type="text/event-stream", headers={"cache-control": "no-store"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises Refusal (overloaded) before anything is sent."""
        if EventStream.open_streams >= MAX_STREAMS:
            raise Refusal("overloaded", f"overloaded: {MAX_STREAMS} event streams are open, the limit; retry after 1 s")
        EventStream.open_streams += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            EventStream.open_streams -= 1


async def events(ledger: Ledger, job_id: str, last_event_id: int) -> AsyncIterator[str]:
    """Yields the events of a job after number `last_event_id` (0: all of them), until the job has ended. The last event is
    `end`, with the job as its data.
    """
    number = position = 0
    sent_at = time.monotonic()
    while True:
        try:
            job = await asyncio.to_thread(ledger.get, job_id)  # before the events: once a job has ended, none is added
            lines, position = await asyncio.to_thread(ledger.events, job_id, position)
        except JobError as error:
            yield _event("error", json.dumps(refusal_for(error).body()))
            return
        for text in lines:
            number += 1
            if number > last_event_id:
                event = RunEvent.parse(text)  # None if it is invalid: truncated by a full disk, or not written by a training
                yield _event(event.NAME if event else "message", text, number)
                sent_at = time.monotonic()
        if not job.active:
            yield _event("end", job.model_dump_json())
            return
        if time.monotonic() - sent_at > KEEP_ALIVE_SECONDS:
            yield ": keep-alive\n\n"
            sent_at = time.monotonic()
        await asyncio.sleep(POLL_SECONDS)


def _event(name: str, data: str, number: int | None = None) -> str:
    id_field = "" if number is None else f"id: {number}\n"
    one_line = data.replace("\r", " ").replace("\n", " ")  # a line break would begin another field
    return f"{id_field}event: {name}\ndata: {one_line}\n\n"
