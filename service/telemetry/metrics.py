"""Every metric, in one place. Names are fixed (contract); units are in them; no label grows with the graph.

With several workers each writes into files below PROMETHEUS_MULTIPROC_DIR, and whichever answers /metrics adds them up.
"""

from __future__ import annotations

import os
import resource
import shutil
import time
from collections import Counter as Counts
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import get_args

import numpy as np
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    multiprocess,
    values,
)

from service.engines.served_model import ServedModel
from service.jobs.job import Job, State
from service.telemetry.capacity import container_memory
from service.telemetry.metrics_folder import identity, is_alive

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 20_000, 100_000)
SHED_REASONS = ("queue", "bytes", "rate", "deadline", "gone")
CONTENT_TYPE = CONTENT_TYPE_LATEST
DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"


class BulkHistogram(Histogram):
    """Takes many observations at the price of a few."""

    def observe_all(self, amounts: Sequence[float]) -> None:
        places = np.searchsorted(self._upper_bounds, amounts)  # the first bound that is not below
        self._sum.inc(sum(amounts))
        for place, count in enumerate(np.bincount(places).tolist()):
            if count:
                self._buckets[place].inc(count)


@dataclass
class Metrics:
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    store: Path | None = None
    """Its file system is measured."""

    def __post_init__(self) -> None:
        new = self.registry
        _know_the_process()
        self.requests = Counter("sgf_requests_total", "Answers, by route and status.", ["route", "code"], registry=new)
        self.seconds = BulkHistogram(
            "sgf_request_duration_seconds",
            "From the head of a request to the last of its answer, handed to the system.",
            ["route"],
            buckets=SECONDS,
            registry=new,
        )
        self.stages = BulkHistogram(
            "sgf_stage_duration_seconds", "Of one request, by stage.", ["stage"], buckets=SECONDS, registry=new
        )
        self.batch_nodes = Histogram("sgf_batch_nodes", "New nodes answered in one go.", buckets=SIZES, registry=new)
        self.queue_depth = _gauge("sgf_queue_depth", "Requests that wait or run.", new, "livesum")
        self.buffered = _gauge("sgf_buffered_bytes", "Request bodies and unread answers that are held.", new, "livesum")
        self.shed = Counter("sgf_shed_total", "Requests that were refused for lack of capacity.", ["reason"], registry=new)
        self.dropped_lines = Counter("sgf_log_lines_dropped_total", "Log lines dropped: their reader stalls.", registry=new)
        self.cache_lookups = Counter("sgf_cache_lookups_total", "Look-ups.", ["kind", "result"], registry=new)
        self.cache_errors = Counter(
            "sgf_cache_errors_total", "Failures of the cache, and values it did not write.", registry=new
        )
        self.cache_up = _gauge("sgf_cache_up", "0 where Redis failed when it was last needed.", new, "livemin")
        self.recomputed = Histogram(
            "sgf_recomputed_nodes", "Stored states recomputed for one new node.", buckets=SIZES, registry=new
        )
        self.info = _gauge("sgf_model_info", "1 for the version that is served.", new, "livemax", ["version", "snapshot"])
        self.swaps = Counter(
            "sgf_model_swaps_total",
            "Attempts to change the version, by result.",
            ["result"],
            registry=new,
        )
        self.created = _gauge(
            "sgf_model_created_timestamp_seconds", "When the served version was published.", new, "livemin"
        )
        self.nodes = _gauge("sgf_graph_nodes", "Nodes of the served graph.", new, "livemax")
        self.edges = _gauge("sgf_graph_edges", "Edges of the served graph.", new, "livemax")
        self.ready = _gauge("sgf_ready", "1 where every worker has a version in service.", new, "livemin")
        self.memory = _gauge("sgf_process_memory_bytes", "Resident memory, mapped files included.", new, "liveall")
        self.peak_memory = _gauge("sgf_process_peak_memory_bytes", "The most that it was.", new, "liveall")
        self.memory_used = _gauge(
            "sgf_memory_used_bytes", "Of the container, without page cache; 0: it has no limit.", new, "livemostrecent"
        )
        self.memory_limit = _gauge("sgf_memory_limit_bytes", "Of the container; 0: none.", new, "livemostrecent")
        self.store_free = _gauge("sgf_store_free_bytes", "Of the store's file system.", new, "livemostrecent")
        self.store_size = _gauge("sgf_store_size_bytes", "Of the store's file system.", new, "livemostrecent")
        self.started = _gauge("sgf_process_start_time_seconds", "When the newest worker started.", new, "livemax")
        self.started.set(time.time())
        self.retrain_jobs = Counter("sgf_retrain_jobs_total", "Retrainings that entered a state.", ["state"], registry=new)
        self.retrain_waiting = _gauge("sgf_retrain_jobs_waiting", "Retrainings nobody has begun.", new, "livemostrecent")
        self.retrain_workers = _gauge("sgf_retrain_workers", "Connected processes that can train.", new, "livemostrecent")
        self.retrain_epoch = _gauge("sgf_retrain_epoch", "Of the retraining under way.", new, "livemostrecent")
        self.build = _gauge("sgf_build_info", "Of this software.", new, "livemax", ["version"])
        self.build.labels(_version()).set(1)
        self.ready.set(0)
        self._answered: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        self._spent: defaultdict[str, list[float]] = defaultdict(list)
        self._turned_away: Counts[str] = Counts()
        self._dropped_lines = 0
        self.cache_up.set(1)
        self.retrain_waiting.set(0)
        self.retrain_workers.set(0)
        self.retrain_epoch.set(0)
        self._start_at_zero()

    def _start_at_zero(self) -> None:
        """A series that first appears as 1 has not increased for Prometheus."""
        swaps, states = ("taken", "refused", "failed", "rolled_back"), get_args(State)
        for counter, labels in ((self.shed, SHED_REASONS), (self.swaps, swaps), (self.retrain_jobs, states)):
            for label in labels:
                counter.labels(label)
        for route in ("/predict", "/embed"):
            self.requests.labels(route, "200")
            self.seconds.labels(route)

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Noted, to be booked with others: a metric that all workers share costs a good part of a known node's answer."""
        self._answered[route, status].append(seconds)

    def spent(self, stage: str, seconds: float) -> None:
        """Of one request, noted as well."""
        self._spent[stage].append(seconds)

    def turned_away(self, reason: str) -> None:
        """Noted as well: in an overload they are most."""
        self._turned_away[reason] += 1

    def book(self, dropped_lines: int | None = None) -> None:
        """Books what was noted since the last time. Noting and booking are the event loop's: nothing comes in between."""
        if dropped_lines is not None and dropped_lines > self._dropped_lines:
            self.dropped_lines.inc(dropped_lines - self._dropped_lines)
            self._dropped_lines = dropped_lines
        answered, self._answered = self._answered, defaultdict(list)  # first: what cannot be booked is not kept for ever
        spent, self._spent = self._spent, defaultdict(list)
        turned_away, self._turned_away = self._turned_away, Counts()
        for (route, status), noted in answered.items():
            self.requests.labels(route, str(status)).inc(len(noted))
            self.seconds.labels(route).observe_all(noted)
        for stage, noted in spent.items():
            self.stages.labels(stage).observe_all(noted)
        for reason, count in turned_away.items():
            self.shed.labels(reason).inc(count)

    def serving(self, loaded: ServedModel, before: ServedModel | None) -> None:
        if before is not None:
            self.info.labels(str(before.version), before.id).set(0)
        self.info.labels(str(loaded.version), loaded.id).set(1)
        self.created.set(datetime.fromisoformat(loaded.snapshot.manifest.created).timestamp())
        self.nodes.set(loaded.num_nodes)
        self.edges.set(loaded.snapshot.manifest.sizes.adjacency_entries // 2)
        self.ready.set(1)

    def job_entered(self, job: Job) -> None:
        """Called by whoever made the change, so that every state of a job is counted once over all workers."""
        self.retrain_jobs.labels(job.state).inc()

    def remember_memory(self) -> None:
        self.peak_memory.set(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        with suppress(OSError):  # only Linux has it
            self.memory.set(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE"))

    def measure(self) -> None:
        """Reads files and the store's file system, which may be slow: not for the event loop."""
        self.remember_memory()
        memory = container_memory()
        self.memory_used.set(memory.used_bytes if memory else 0)
        self.memory_limit.set(memory.limit_bytes if memory else 0)
        with suppress(OSError):  # the store may not exist yet
            space = shutil.disk_usage(self.store or "")
            self.store_free.set(space.free)
            self.store_size.set(space.total)

    def page(self) -> bytes:
        """In Prometheus' text format, over all workers. What was noted must be booked before; this may run in any thread."""
        self.measure()
        if os.environ.get(DIRECTORY):
            _forget_dead_workers(Path(os.environ[DIRECTORY]))
            together = CollectorRegistry()
            multiprocess.MultiProcessCollector(together)  # type: ignore[no-untyped-call]  # their stub
            return generate_latest(together)
        return generate_latest(self.registry)


def _know_the_process() -> None:
    """By default every count asks the system for the process's number, which costs more than the counting."""
    if os.environ.get(DIRECTORY):
        process = identity(os.getpid())
        values.ValueClass = values.MultiProcessValue(lambda: process)  # type: ignore[no-untyped-call]  # their stub


def _forget_dead_workers(folder: Path) -> None:
    """A worker that was killed left its gauges: they would say for ever that it is not ready."""
    for process in {path.stem.rpartition("_")[2] for path in folder.glob("gauge_live*.db")}:
        if not is_alive(process):
            multiprocess.mark_process_dead(process)  # type: ignore[no-untyped-call]  # their stub


def _gauge(name: str, about: str, registry: CollectorRegistry, mode: str, labels: list[str] | None = None) -> Gauge:
    return Gauge(name, about, labels or [], registry=registry, multiprocess_mode=mode)  # type: ignore[arg-type]  # a literal


def _version() -> str:
    try:
        return version("sgformer-serving")
    except PackageNotFoundError:
        return "unknown"
