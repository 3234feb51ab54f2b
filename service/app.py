"""The service put together: `create_app(settings)` for tests and other servers, `app_from_env` for uvicorn's workers."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI

from service.admission import Admission
from service.http.admin_routes import admin_routes
from service.http.gateway import Gateway
from service.http.pages import pages
from service.jobs.job_service import JobService, Leader
from service.predict.answering import Answering
from service.predict.batching import Batcher
from service.predict.cache import cache_for
from service.rollout.rollout import Rollout
from service.settings import REMOVED, Settings
from service.telemetry import logs
from service.telemetry.metrics import Metrics

LOG = logging.getLogger("service.app")
BOOKING_SECONDS, SWEEP_SECONDS = 0.1, 0.25
M_MMAP_THRESHOLD = -3
SWITCH_SECONDS = 0.0001
"""How long the worker thread may keep the interpreter from the event loop. With Python's default of 5 ms, each step of a
cheap request would wait for as long while an expensive one is computed."""


def create_app(settings: Settings, writer: logs.LogWriter | None = None) -> Gateway:
    """An ASGI application for `service.http.protocol`. Its lifespan opens the live version before it takes requests, and
    drains on the way out. `writer` takes the access log.
    """
    metrics = Metrics(store=settings.store)
    rollout, admission = Rollout(settings, metrics), Admission(settings, metrics)
    log = logs.AccessLog(writer if settings.access_log else None)

    def book() -> None:
        """What is done for many requests at once: for each request it would cost as much as its answer."""
        metrics.queue_depth.set(admission.depth + batcher.depth)
        metrics.buffered.set(admission.held_bytes)
        metrics.book(log.dropped_lines)
        log.flush()

    batcher, cache = Batcher(settings, metrics), cache_for(settings, metrics)
    jobs = None if settings.admin_token is None else JobService(settings, metrics)
    leader = None if jobs is None else Leader(jobs, settings)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        tasks = [
            asyncio.create_task(_repeat(book, BOOKING_SECONDS)),
            asyncio.create_task(_repeat(admission.sweep, SWEEP_SECONDS)),
        ]
        await rollout.start()
        if cache is not None:
            cache.start()
        if leader is not None:
            leader.start()
        gc.collect()
        gc.freeze()  # what was imported and loaded stays: no collection needs to walk over it again
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            if leader is not None:
                await asyncio.to_thread(leader.stop)
            await batcher.close()
            await rollout.stop()
            if cache is not None:
                await cache.close()
            book()

    answering = Answering(settings, metrics, batcher, cache)
    admin = admin_routes(jobs, settings.data_root, rollout)
    others = pages(rollout, metrics, lifespan, bool(settings.api_keys), admin)
    return Gateway(settings, metrics, rollout, answering, admission, log, others)


async def _repeat(step: Callable[[], None], seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            step()
        except Exception:  # what failed once may work the next time
            LOG.exception("%s failed; it is repeated in %g s", step.__qualname__, seconds)


def _give_memory_back() -> None:
    """Large blocks are returned to the system when they are freed. By default glibc keeps those up to 32 MB for reuse."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 512 * 1024)


def app_from_env() -> Gateway:
    writer = logs.set_up()
    _give_memory_back()
    sys.setswitchinterval(SWITCH_SECONDS)
    for name in REMOVED:
        if name in os.environ:
            LOG.warning("%s has no effect any more: see SGF_MAX_QUEUE_SECONDS", name)
    return create_app(Settings.from_env(), writer)
