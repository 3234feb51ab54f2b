"""The service put together: `create_app(settings)` for tests and other servers, `app_from_env` for uvicorn's workers."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from service import logs
from service.admission import Admission
from service.answering import Answering
from service.batching import Batcher
from service.cache import cache_for
from service.gateway import Gateway
from service.heartbeat import Heartbeat
from service.jobs.attendant import Attendant
from service.jobs.catalogue import Catalogue
from service.jobs.local import FOLDER, LocalRunner
from service.jobs.pages import admin_pages
from service.jobs.runner import Runner
from service.metrics import Metrics
from service.pages import pages
from service.rollout import Rollout
from service.settings import Settings


def create_app(settings: Settings) -> Gateway:
    """An ASGI application. Its lifespan opens the live version before it takes requests, and drains on the way out."""
    metrics = Metrics(store=settings.store)
    rollout, admission = Rollout(settings, metrics), Admission(settings, metrics)
    log = logs.AccessLog(settings.access_log)
    heartbeat = Heartbeat(admission.beat, metrics.book, log.flush)
    batcher, cache = Batcher(settings, metrics), cache_for(settings, metrics)
    runner = None if settings.admin_token is None else runner_for(settings, metrics)
    attendant = None if runner is None else Attendant(runner, settings.store / FOLDER / "attendant.lock")

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        heartbeat.start()
        await rollout.start()
        if cache is not None:
            cache.start()
        if attendant is not None:
            attendant.start()
        gc.collect()
        gc.freeze()  # what was imported and loaded stays: no collection needs to walk over it again
        try:
            yield
        finally:
            heartbeat.stop()
            if attendant is not None:
                await asyncio.to_thread(attendant.stop)
            await batcher.close()
            await rollout.stop()
            if cache is not None:
                await cache.close()
            metrics.book()
            log.flush()

    answering = Answering(settings, metrics, batcher, cache)
    admin = admin_pages(runner, Catalogue(settings.data_root), rollout)
    others = pages(rollout, metrics, lifespan, bool(settings.api_keys), admin)
    return Gateway(settings, metrics, rollout, answering, admission, log, others)


def runner_for(settings: Settings, metrics: Metrics) -> Runner:
    if not settings.jobs_in_redis:
        return LocalRunner(settings, metrics)
    from service.jobs.redis_runner import RedisRunner

    return RedisRunner(settings, metrics)


def app_from_env() -> Gateway:
    logs.set_up()
    return create_app(Settings.from_env())
