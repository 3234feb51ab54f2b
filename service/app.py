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
from service.announcement import announce
from service.explain.explainer import Explainer
from service.http.admin_routes import admin_routes
from service.http.gateway import Gateway
from service.http.graph_routes import GraphChanges
from service.http.pages import pages
from service.jobs.compaction import Overlay
from service.jobs.job_service import JobService, Leader
from service.live.committer import Committer
from service.live.replica import Replica
from service.monitoring.monitor import FLUSH_SECONDS, Monitor
from service.predict.batching import Batcher
from service.predict.cache import RedisCache, cache_for
from service.predict.predictor import Predictor
from service.rollout.rollout import Rollout
from service.settings import REMOVED, Settings
from service.telemetry import logs
from service.telemetry.metrics import Metrics

LOG = logging.getLogger("service.app")
RECORD_SECONDS, SWEEP_SECONDS = 0.1, 0.25
"""Time between two updates of metrics and log, and between two checks for connections that have timed out."""
M_MMAP_THRESHOLD = -3  # of malloc.h
GC_THRESHOLD = 20_000
"""New objects between two runs of the garbage collector. Requests leave no reference cycles, so frequent runs (the
default is 700) would find nothing."""


def create_app(settings: Settings, writer: logs.LogWriter | None = None) -> Gateway:
    """An ASGI application for `service.http.protocol`. Its lifespan opens the live version before the first request, and
    waits for running requests at the end. `writer` takes the access log.
    """
    metrics = Metrics(store=settings.store)
    replica, admission = Replica(settings, metrics), Admission(settings, metrics)
    rollout = Rollout(settings, metrics, replica)
    log = logs.AccessLog(writer if settings.access_log else None)

    def write_records() -> None:
        """Writes metrics and log lines of many requests at once: once per request, this would cost as much as an answer."""
        metrics.queue_depth.set(admission.answers.depth + admission.pages.depth + batcher.depth)
        metrics.buffered.set(admission.held_bytes)
        metrics.apply_lag.set(replica.lag_seconds)
        metrics.flush(0 if writer is None else writer.dropped_lines)
        log.flush()

    monitor = Monitor(settings, metrics, rollout)
    batcher, cache = Batcher(settings, metrics, monitor.observe), cache_for(settings, metrics)
    committer = Committer(settings, metrics, replica, lambda: batcher.num_batches)
    jobs = None if settings.admin_token is None else JobService(settings, metrics, lambda: _overlay(rollout))
    leader = None if jobs is None else Leader(jobs, settings)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        tasks = [
            asyncio.create_task(_repeat(write_records, RECORD_SECONDS)),
            asyncio.create_task(_repeat(admission.sweep, SWEEP_SECONDS)),
            asyncio.create_task(_repeat(monitor.flush, FLUSH_SECONDS)),
        ]
        await rollout.start()
        replica.start()
        if isinstance(cache, RedisCache):
            tasks.append(asyncio.create_task(cache.watch()))
        if leader is not None:
            leader.start()
        if writer is not None and writer.text is not None:
            tasks.append(asyncio.create_task(announce(settings, rollout, writer, writer.text)))
        _relax_garbage_collector()
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            if leader is not None:
                await asyncio.to_thread(leader.stop)
            for close in (committer.close, replica.stop, monitor.close, batcher.close, rollout.stop):  # in this order
                await close()
            if isinstance(cache, RedisCache):
                await cache.close()
            write_records()

    predictor = Predictor(settings, metrics, batcher, cache, replica)
    admin = admin_routes(jobs, settings.data_root, rollout)
    fastapi_app = pages(settings, rollout, replica, monitor, metrics, lifespan, admin)
    changes = GraphChanges(settings, rollout, committer)
    explainer = Explainer(settings, metrics, batcher)
    return Gateway(settings, metrics, rollout, predictor, admission, log, fastapi_app, changes, explainer)


def _overlay(rollout: Rollout) -> Overlay | None:
    model = rollout.model
    if model is None or model.snapshot.raw_features() is None:  # without raw features the graph cannot be published again
        return None
    size = model.live.graph.size
    return Overlay(model.name, model.id, max(size.nodes, size.features), model.num_nodes)


async def _repeat(step: Callable[[], None], seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            step()
        except Exception:  # a defect in one step must not end its repetition
            LOG.exception("%s failed; it is repeated in %g s", step.__qualname__, seconds)


def _relax_garbage_collector() -> None:
    gc.collect()
    gc.set_threshold(GC_THRESHOLD)
    gc.freeze()  # objects made so far live as long as the process: the collector need not visit them


def _give_memory_back() -> None:
    """Makes malloc return freed blocks of 512 kB and more to the system. By default glibc keeps blocks up to 32 MB."""
    with suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 512 * 1024)


def app_from_env() -> Gateway:
    settings = Settings.from_env()
    writer = logs.set_up(settings.log_format)
    _give_memory_back()
    for name in REMOVED:
        if name in os.environ:
            LOG.warning("%s has no effect any more: see SGF_MAX_QUEUE_SECONDS", name)
    return create_app(settings, writer)
