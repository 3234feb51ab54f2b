"""Watches a worker: samples requests for drift, verifies some of the answers, and measures the drift of the live graph."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.engines.served_model import ServedModel
from service.monitoring.drift import GRAPH, VersionDrift
from service.monitoring.graph_counts import CountRequest
from service.monitoring.reference import Reference
from service.monitoring.request_counts import RequestCounts
from service.monitoring.shadow import Shadow
from service.predict.compute_process import ComputeProcess
from service.predict.results import Results
from service.predict.rows import BothRows, NewRows, Rows
from service.rollout.rollout import Rollout
from service.settings import Settings
from service.telemetry.metrics import Metrics
from service.telemetry.process_info import FOLDER_VARIABLE
from sgformer.arrays.operations import Indices
from sgformer.features import take_rows
from sgformer_client.answers import DriftAnswer

LOG = logging.getLogger("service.monitoring.monitor")
FLUSH_SECONDS = 1.0
MAX_ROWS = 32
"""Most new nodes that a worker samples between two flushes."""
MAX_GRAPH_SHARE = 0.05
"""Largest share of a core for counting a graph that changes all the time."""


class SampledNodes(NamedTuple):
    """New nodes of a request, with their answers."""

    version: str
    """The hash of the snapshot that answered."""
    features: Any
    degrees: Indices
    logits: NDArray[np.float32]


class Monitor:
    """Used by one event loop."""

    def __init__(self, settings: Settings, metrics: Metrics, rollout: Rollout) -> None:
        self._metrics, self._rollout, self._seconds = metrics, rollout, settings.deadline_seconds
        self._process, self._lock = ComputeProcess(), asyncio.Lock()
        self._shadow = Shadow(settings, metrics, self._process, self._lock, self._start)
        folder = os.environ.get(FOLDER_VARIABLE)
        self._folder = Path(folder) if folder else None
        self._samples_left, self._sampled = MAX_ROWS, list[SampledNodes]()
        self._drift: VersionDrift | None = None
        self._preparing = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._graph_task: asyncio.Task[None] | None = None
        self._graph_due = 0.0

    def observe(self, model: ServedModel, rows: Rows, results: Results) -> None:
        """Called for every answer, before it is encoded. Takes less than a microsecond for most answers."""
        self._shadow.observe(model, rows, results)
        if self._samples_left and isinstance(rows, (NewRows, BothRows)):  # `|` would make an object per answer
            self._sample(model, rows.new if isinstance(rows, NewRows) else rows.new.new, results.parts[-1].logits)

    def _sample(self, model: ServedModel, new: Any, logits: NDArray[np.float32]) -> None:
        positions = np.arange(min(self._samples_left, len(new)))
        self._samples_left -= len(positions)
        degrees = new.counts[positions] + np.bincount(new.edges.ravel(), minlength=len(new))[positions]
        self._sampled.append(SampledNodes(model.id, take_rows(new.features, positions), degrees, logits[positions].copy()))

    def flush(self) -> None:
        """Counts the nodes that were sampled since the last call."""
        model = self._rollout.model
        if not self._sampled or model is None:
            return
        if self._drift is None or self._drift.version != model.id:
            self._start(self._drift_of(model.acquire()))  # the sampled nodes are counted at the next call
            return
        sampled, self._sampled, self._samples_left = self._sampled, [], MAX_ROWS
        for part in sampled:
            if part.version == model.id and np.isfinite(part.logits).all():
                counts = self._drift.reference.count(part.features, part.degrees, part.logits)
                self._drift.requests.add(counts)

    async def report(self) -> DriftAnswer:
        """Raises Refusal (not_ready)."""
        model = self._rollout.current().acquire()
        try:
            drift = await self._drift_of(model.acquire())
            self._follow_graph(drift, model)
            if self._graph_task is not None:
                await asyncio.wait([self._graph_task], timeout=self._seconds)
            kinds, since = await asyncio.to_thread(drift.measure)
        finally:
            model.release()
        start = None if since is None else datetime.fromtimestamp(since, UTC).isoformat(timespec="seconds")
        sequence = model.live.base_sequence if drift.graph is None else drift.graph.sequence
        return DriftAnswer.model_validate(model.origin_at(sequence) | {"since": start, "kinds": kinds})

    async def set_gauges(self) -> None:
        """Sets the gauges of drift, which cover all workers, for a page of metrics. Never raises."""
        model, drift = self._rollout.model, self._drift
        if model is None or drift is None or drift.version != model.id:
            if model is not None:
                self._start(self._drift_of(model.acquire()))
            return
        self._follow_graph(drift, model)
        is_counted = drift.graph is not None or not model.is_changed
        try:
            kinds, _ = await asyncio.to_thread(drift.measure)
        except Exception:  # the page has other metrics
            LOG.exception("drift could not be measured; its gauges keep their values")
            return
        for kind, measured in kinds.items():
            if kind.startswith(GRAPH) and not is_counted:
                continue  # the gauges have what another worker has counted
            self._metrics.drift.labels(kind).set(measured.value or 0)
            self._metrics.drift_threshold.labels(kind).set(measured.threshold or 0)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._process.stop()

    async def _drift_of(self, model: ServedModel) -> VersionDrift:
        """The drift of a version; at the first use, computes the reference. Releases the version."""
        try:
            async with self._preparing:
                if self._drift is None or self._drift.version != model.id:
                    reference = await asyncio.to_thread(Reference, model.snapshot)
                    requests = RequestCounts(self._folder, model.id, reference.size)
                    self._drift = VersionDrift(model, reference, requests)
                return self._drift
        finally:
            model.release()

    def _follow_graph(self, drift: VersionDrift, model: ServedModel) -> None:
        """Starts to count the graph in the monitoring process, if it has changed."""
        counted = model.live.base_sequence if drift.graph is None else drift.graph.sequence
        if (
            self._graph_task is None
            and model.is_changed
            and model.sequence != counted
            and time.monotonic() > self._graph_due
        ):
            self._graph_task = self._start(self._count_graph(drift, model.acquire()))

    async def _count_graph(self, drift: VersionDrift, model: ServedModel) -> None:
        start = time.monotonic()
        try:
            async with self._lock:
                (result,) = await self._process.compute(model, [CountRequest()])
            if isinstance(result, Exception):
                raise result
            drift.graph = result
        except Exception as error:
            LOG.warning("drift of the live graph could not be measured (%s: %s)", type(error).__name__, error)
        finally:
            model.release()
            end = time.monotonic()
            self._graph_task, self._graph_due = None, end + (end - start) / MAX_GRAPH_SHARE

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Starts a task that ends with the worker."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            LOG.error("a task of the monitoring failed; the next request or page of metrics starts it again", exc_info=error)
