"""Builds the service: `create_app(settings)` for tests, `app_from_env` for the workers of uvicorn."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI

from service.admission import Admission
from service.http.admin_routes import admin_routes
from service.http.gateway import Gateway
from service.http.pages import pages
from service.jobs.job_service import JobService, Leader
from service.predict.batching import Batcher
from service.predict.cache import RedisCache, cache_for
from service.predict.predictor import Predictor
from service.rollout.rollout import Rollout
from service.settings import REMOVED, Settings
from service.telemetry import logs
from service.telemetry.metrics import Metrics

LOG = logging.getLogger("service.app")
BOOKING_SECONDS, SWEEP_SECONDS = 0.1, 0.25
M_MMAP_THRESHOLD = -3
GC_THRESHOLD = 20_000
"""Objects between two runs of the garbage collector. Requests leave no cycles; with the default of 700 it runs in vain."""


def create_app(settings: Settings, writer: logs.LogWriter | None = None) -> Gateway:
    """An ASGI application for `service.http.protocol`. Its lifespan opens the live version before the first request, and
    waits for running requests at the end. `writer` takes the access log.
    """
    metrics = Metrics(store=settings.store)
    rollout, admission = Rollout(settings, metrics), Admission(settings, metrics)
    log = logs.AccessLog(writer if settings.access_log else None)

    def book() -> None:
        """Updates metrics and the log for many requests at once: per request this would cost as much as an answer."""
        metrics.queue_depth.set(admission.answers.depth + admission.pages.depth + batcher.depth)
        metrics.buffered.set(admission.held_bytes)
        metrics.flush(0 if writer is None else writer.dropped_lines)
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
        if isinstance(cache, RedisCache):
            tasks.append(asyncio.create_task(cache.watch()))
        if leader is not None:
            leader.start()
        gc.collect()
        gc.set_threshold(GC_THRESHOLD)
        gc.freeze()  # objects of the start-up stay: the collector need not visit them
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            if leader is not None:
                await asyncio.to_thread(leader.stop)
            await batcher.close()
            await rollout.stop()
            if isinstance(cache, RedisCache):
                await cache.close()
            book()

    predictor = Predictor(settings, metrics, batcher, cache)
    admin = admin_routes(jobs, settings.data_root, rollout)
    others = pages(rollout, metrics, lifespan, bool(settings.api_keys), admin)
    return Gateway(settings, metrics, rollout, predictor, admission, log, others)


async def _repeat(step: Callable[[], None], seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            step()
        except Exception:  # a defect in one step must not end its repetition
            LOG.exception("%s failed; it is repeated in %g s", step.__qualname__, seconds)


def _give_memory_back() -> None:
    """Makes malloc return freed blocks to the system from 512 kB on. By default glibc keeps blocks up to 32 MB."""
    with suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 512 * 1024)


def app_from_env() -> Gateway:
    writer = logs.set_up()
    _give_memory_back()
    for name in REMOVED:
        if name in os.environ:
            LOG.warning("%s has no effect any more: see SGF_MAX_QUEUE_SECONDS", name)
    return create_app(Settings.from_env(), writer)
