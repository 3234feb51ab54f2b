"""The events of a job as server-sent events, which a browser or `curl -N` reads, until the job has ended."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import ClassVar

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from service.http.errors import Refusal
from service.jobs.progress import event_in
from service.jobs.record import Job
from service.jobs.runner import Ledger, Line, Place

POLL_SECONDS, KEEP_ALIVE_SECONDS = 0.5, 15.0
MAX_STREAMS = 32
"""Of one worker. Each stream takes a thread twice a second, and /admin and /models use the same threads."""


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
    """Past events first, without those up to `last_event_id`. The last event, `end`, has the job itself."""
    place, sent_at = Place(), time.monotonic()
    while True:
        try:
            job, lines = await asyncio.to_thread(_poll, ledger, job_id, place)
        except Refusal as refusal:
            yield _event("error", json.dumps(refusal.body()))
            return
        for place, text in lines:
            if place.number > last_event_id:
                yield _event(_name(text), text, place.number)
                sent_at = time.monotonic()
        if not job.active:
            yield _event("end", job.model_dump_json())
            return
        if time.monotonic() - sent_at > KEEP_ALIVE_SECONDS:
            yield ": keep-alive\n\n"
            sent_at = time.monotonic()
        await asyncio.sleep(POLL_SECONDS)


def _poll(ledger: Ledger, job_id: str, after: Place) -> tuple[Job, list[Line]]:
    job = ledger.get(job_id)  # before its events: after the end of the job, no event follows
    return job, ledger.events(job_id, after)


def _name(text: str) -> str:
    """`message` for a line without a valid name: a full disk truncated it, or another program wrote it into Redis."""
    name = str(event_in(text).get("event", ""))
    return name if name.isidentifier() else "message"


def _event(name: str, data: str, number: int | None = None) -> str:
    identity = "" if number is None else f"id: {number}\n"
    one_line = data.replace("\r", " ").replace("\n", " ")  # a line break would begin another field
    return f"{identity}event: {name}\ndata: {one_line}\n\n"
