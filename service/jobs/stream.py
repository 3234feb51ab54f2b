"""A job's events as they come: server-sent events, which a browser or `curl -N` reads, until the job has ended."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

from service.errors import Refusal
from service.jobs.record import Job
from service.jobs.runner import Line, Runner

LOOK_SECONDS, KEEP_ALIVE_SECONDS = 0.5, 15.0


async def events(runner: Runner, job_id: str, after: int) -> AsyncIterator[str]:
    """Lines that were told before come first, those up to `after` excepted; the last event, `end`, holds the job itself."""
    spoken = time.monotonic()
    while True:
        try:
            job, lines = await asyncio.to_thread(_look, runner, job_id, after)
        except Refusal as refusal:
            yield _event("error", json.dumps(refusal.body()))
            return
        for after, text in lines:
            yield _event(_name(text), text, after)
            spoken = time.monotonic()
        if not job.active:
            yield _event("end", job.model_dump_json())
            return
        if time.monotonic() - spoken > KEEP_ALIVE_SECONDS:
            yield ": still there\n\n"
            spoken = time.monotonic()
        await asyncio.sleep(LOOK_SECONDS)


def _look(runner: Runner, job_id: str, after: int) -> tuple[Job, list[Line]]:
    job = runner.job(job_id)  # before its events: none is missed when it has ended
    return job, runner.events(job_id, after)


def _name(text: str) -> str:
    """A line that a full disk cut short is passed on as it is."""
    try:
        return str(json.loads(text)["event"])
    except (ValueError, KeyError):
        return "message"


def _event(name: str, data: str, number: int | None = None) -> str:
    identity = "" if number is None else f"id: {number}\n"
    return f"{identity}event: {name}\ndata: {data}\n\n"
