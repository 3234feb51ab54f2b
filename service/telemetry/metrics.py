"""All metrics. Their names are part of the contract, units are in the names, and no label grows with the graph.

Each worker writes its metrics to files below PROMETHEUS_MULTIPROC_DIR; the worker that answers /metrics adds them up.
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
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess, values

from model_store.live_graph.operations import Kind
from service.telemetry.process_info import FOLDER_VARIABLE, container_memory, identity, is_alive, owner_of

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 20_000, 100_000)
SHED_REASONS = ("queue", "bytes", "rate", "deadline", "gone")
SWAP_RESULTS = ("taken", "refused", "failed", "rolled_back")
JOB_STATES = ("queued", "running", "succeeded", "failed", "cancelled")
SHADOW_RESULTS = ("passed", "failed")
SHADOW_SKIPS = ("busy", "budget", "too_large", "extreme", "error")
REQUEST_DRIFT = ("features", "degrees", "predictions", "confidence")
DRIFT_KINDS = (*REQUEST_DRIFT, *(f"graph_{kind}" for kind in REQUEST_DRIFT), "graph_sums")
Merge = Literal["livesum", "livemin", "livemax", "liveall", "livemostrecent"]
"""How the values of a gauge in all living workers are combined; `liveall` keeps each."""


class BulkHistogram(Histogram):
    """A histogram that takes many observations for the cost of a few."""

    def observe_all(self, amounts: Sequence[float]) -> None:
        if not amounts:
            return
        buckets = np.searchsorted(self._upper_bounds, amounts)  # the first bound that is not below the amount
        self._sum.inc(sum(amounts))
        for bucket, count in enumerate(np.bincount(buckets).tolist()):
            if count:
                self._buckets[bucket].inc(count)


class Metrics:
    """The metrics of one worker.

    Methods `record_...` only remember their values, and `flush` writes many of them at once: to write a metric that all
    workers share takes a good part of the time of an answer. All of these methods are called on the event loop.
    """

    def __init__(self, store: Path | None = None) -> None:
        """`store`: the folder of the store, whose file system is measured too."""
        if os.environ.get(FOLDER_VARIABLE):  # by default, every count asks the system for the process id
            process = identity(os.getpid())
            values.ValueClass = values.MultiProcessValue(lambda: process)  # type: ignore[no-untyped-call]  # their stub
        self.registry, self._store = CollectorRegistry(), store
        self._declare_requests()
        self._declare_state()
        self._set_initial_values()
        self._responses: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        self._stages: defaultdict[str, list[float]] = defaultdict(list)
        self._shed: Counts[str] = Counts()
        self._batch_nodes: list[int] = []
        self._recomputed: list[int] = []
        self._commits: list[float] = []
        self._operations: Counts[tuple[str, str]] = Counts()
        self._dropped_lines = 0
        self._served: tuple[str, str] | None = None

    def _declare_requests(self) -> None:
        counter = partial(Counter, registry=self.registry)
        duration = partial(BulkHistogram, buckets=SECONDS, registry=self.registry)
        size = partial(BulkHistogram, buckets=SIZES, registry=self.registry)
        self.requests = counter("sgf_requests_total", "Responses, by route and status code.", ["route", "code"])
        about = "From the complete head of a request until its response is passed to the system."
        self.seconds = duration("sgf_request_duration_seconds", about, ["route"])
        self.stages = duration("sgf_stage_duration_seconds", "Duration of each stage of a request.", ["stage"])
        self.batch_nodes = size("sgf_batch_nodes", "New nodes computed in one batch.")
        self.recomputed = size("sgf_recomputed_nodes", "Stored states recomputed for one new node.")
        self.shed = counter("sgf_shed_total", "Requests refused for lack of capacity, by reason.", ["reason"])
        self.dropped_lines = counter("sgf_log_lines_dropped_total", "Log lines dropped because the log is not read.")
        self.cache_lookups = counter("sgf_cache_lookups_total", "Look-ups, by cache and result.", ["kind", "result"])
        self.cache_errors = counter("sgf_cache_errors_total", "Failures of the cache, and invalid values found in it.")
        self.swaps = counter("sgf_model_swaps_total", "Attempts to change the served version, by result.", ["result"])
        about = "Operations on the graph in requests that were committed or refused."
        self.graph_operations = counter("sgf_graph_operations_total", about, ["op", "result"])
        about = "From a valid request to change the graph until it is logged and applied."
        self.commit_seconds = duration("sgf_graph_commit_duration_seconds", about)
        about = "Answers that were computed again in another way, by result."
        self.shadow_checks = counter("sgf_shadow_checks_total", about, ["result"])
        about = "Answers that were due to be computed again and were not, by reason."
        self.shadow_skips = counter("sgf_shadow_skips_total", about, ["reason"])
        self.retrain_jobs = counter("sgf_retrain_jobs_total", "Retraining jobs that entered a state.", ["state"])

    def _declare_state(self) -> None:
        def gauge(name: str, merge: Merge, about: str, labels: Sequence[str] = ()) -> Gauge:
            return Gauge(name, about, labels, registry=self.registry, multiprocess_mode=merge)

        self.queue_depth = gauge("sgf_queue_depth", "livesum", "Requests that wait or run.")
        self.buffered = gauge("sgf_buffered_bytes", "livesum", "Request bodies and unread responses in memory.")
        self.cache_up = gauge("sgf_cache_up", "livemin", "0 if the last use of Redis failed.")
        self.ready = gauge("sgf_ready", "livemin", "1 if every worker serves a version.")
        self.info = gauge("sgf_model_info", "livemax", "1 for the served version.", ["version", "snapshot"])
        self.created = gauge("sgf_model_created_timestamp_seconds", "livemin", "Publication of the served version.")
        self.nodes = gauge("sgf_graph_nodes", "livemax", "Nodes of the served graph.")
        self.edges = gauge("sgf_graph_edges", "livemax", "Edges of the served graph.")
        self.sequence = gauge("sgf_graph_sequence", "livemin", "Last change of the graph that every worker has applied.")
        about = "Longest time since a worker last knew that it has applied every change."
        self.apply_lag = gauge("sgf_graph_apply_lag_seconds", "livemax", about)
        self.overlay_nodes = gauge("sgf_graph_overlay_nodes", "livemax", "Nodes whose edges differ from the snapshot.")
        about = "Difference from the training graph: of requests in all workers, and of the live graph (graph_...)."
        self.drift = gauge("sgf_drift", "livemostrecent", about, ["kind"])
        self.drift_threshold = gauge(
            "sgf_drift_threshold", "livemostrecent", "Above it, sgf_drift counts as drift.", ["kind"]
        )
        about = "Largest relative error of a verified answer of the served version."
        self.shadow_error = gauge("sgf_shadow_error", "livemax", about)
        self.memory = gauge("sgf_process_memory_bytes", "liveall", "Resident memory, with mapped files.")
        self.peak_memory = gauge("sgf_process_peak_memory_bytes", "liveall", "Largest resident memory so far.")
        about = "Memory of the container, without page cache; 0 if it has no limit."
        self.memory_used = gauge("sgf_memory_used_bytes", "livemostrecent", about)
        self.memory_limit = gauge("sgf_memory_limit_bytes", "livemostrecent", "Memory limit of the container; 0: none.")
        self.store_free = gauge("sgf_store_free_bytes", "livemostrecent", "Free space of the store's file system.")
        self.store_size = gauge("sgf_store_size_bytes", "livemostrecent", "Size of the store's file system.")
        self.started = gauge("sgf_process_start_time_seconds", "livemax", "Start of the newest worker.")
        self.retrain_waiting = gauge("sgf_retrain_jobs_waiting", "livemostrecent", "Retraining jobs in the queue.")
        self.retrain_workers = gauge("sgf_retrain_workers", "livemostrecent", "Connected processes that can train.")
        self.retrain_epoch = gauge("sgf_retrain_epoch", "livemostrecent", "Epoch of the running retraining job.")
        self.build = gauge("sgf_build_info", "livemax", "Version of this software.", ["version"])

    def _set_initial_values(self) -> None:
        """Counters start at 0: Prometheus sees no increase in a series that first appears as 1."""
        self.started.set(time.time())
        self.cache_up.set(1)
        for gauge in (self.retrain_waiting, self.retrain_workers, self.retrain_epoch):
            gauge.set(0)
        try:
            self.build.labels(version("sgformer-serving")).set(1)
        except PackageNotFoundError:
            self.build.labels("unknown").set(1)
        for counter, labels in (
            (self.shed, SHED_REASONS),
            (self.swaps, SWAP_RESULTS),
            (self.retrain_jobs, JOB_STATES),
            (self.shadow_checks, SHADOW_RESULTS),
            (self.shadow_skips, SHADOW_SKIPS),
        ):
            for label in labels:
                counter.labels(label)
        for kind in DRIFT_KINDS:
            self.drift.labels(kind).set(0)
            self.drift_threshold.labels(kind).set(0)
        for op in get_args(Kind):
            for result in ("applied", "refused"):
                self.graph_operations.labels(op, result)
        for route in ("/predict", "/embed", "/explain", "/similar"):
            self.requests.labels(route, "200")
            self.seconds.labels(route)

    def record_response(self, route: str, status: int, seconds: float) -> None:
        self._responses[route, status].append(seconds)

    def record_stages(self, **seconds: float) -> None:
        """The duration of each named stage of a request."""
        for stage, duration in seconds.items():
            self._stages[stage].append(duration)

    def record_batch(self, nodes: int) -> None:
        """The number of new nodes in a batch that was computed."""
        self._batch_nodes.append(nodes)

    def record_recomputed(self, counts: Sequence[int]) -> None:
        """The number of stored states that were recomputed for each new node."""
        self._recomputed += counts

    def record_shed(self, reason: str, count: int = 1) -> None:
        self._shed[reason] += count

    def record_commit(self, seconds: float) -> None:
        self._commits.append(seconds)

    def record_operations(self, result: str, ops: Sequence[str]) -> None:
        """Operations on the graph in one request, which was applied or refused."""
        for op in ops:
            self._operations[op, result] += 1

    def flush(self, dropped_lines: int | None = None) -> None:
        """Writes what was recorded since the last call. `dropped_lines`: dropped lines of the log since the start."""
        if dropped_lines is not None and dropped_lines > self._dropped_lines:
            self.dropped_lines.inc(dropped_lines - self._dropped_lines)
            self._dropped_lines = dropped_lines
        responses, self._responses = self._responses, defaultdict(list)  # first, so that a failure does not repeat them
        stages, self._stages = self._stages, defaultdict(list)
        shed, self._shed = self._shed, Counts()
        for (route, status), durations in responses.items():
            self.requests.labels(route, str(status)).inc(len(durations))
            self.seconds.labels(route).observe_all(durations)
        for stage, durations in stages.items():
            self.stages.labels(stage).observe_all(durations)
        for reason, count in shed.items():
            self.shed.labels(reason).inc(count)
        batches, self._batch_nodes = self._batch_nodes, []
        recomputed, self._recomputed = self._recomputed, []
        self.batch_nodes.observe_all(batches)
        self.recomputed.observe_all(recomputed)
        self._flush_changes()

    def _flush_changes(self) -> None:
        commits, self._commits = self._commits, []
        operations, self._operations = self._operations, Counts()
        self.commit_seconds.observe_all(commits)
        for labels, count in operations.items():
            self.graph_operations.labels(*labels).inc(count)

    def set_graph(self, sequence: int, nodes: int, edges: int, overlay_nodes: int) -> None:
        """Called when the graph of this worker has changed."""
        self.sequence.set(sequence)
        self.nodes.set(nodes)
        self.edges.set(edges)
        self.overlay_nodes.set(overlay_nodes)

    def set_model(self, version: int, snapshot: str, created: float) -> None:
        """Called when this worker serves another version. `created`: seconds since 1970."""
        if self._served is not None:
            self.info.labels(*self._served).set(0)
        self._served = str(version), snapshot
        self.info.labels(*self._served).set(1)
        self.created.set(created)
        self.ready.set(1)

    def measure_memory(self) -> None:
        self.peak_memory.set(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        with suppress(OSError):  # only Linux has this file
            self.memory.set(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE"))

    def measure_store(self) -> None:
        """Not part of `page`, because the file system of the store may stall."""
        with suppress(OSError):  # the store may not exist yet
            space = shutil.disk_usage(self._store or "")
            self.store_free.set(space.free)
            self.store_size.set(space.total)

    def page(self) -> bytes:
        """The metrics of all workers in the text format of Prometheus.

        Memory is measured now; recorded values are those up to the last flush. Reads files, which may be slow: not for the
        event loop.
        """
        self.measure_memory()
        memory = container_memory()
        self.memory_used.set(memory.used_bytes if memory else 0)
        self.memory_limit.set(memory.limit_bytes if memory else 0)
        folder = os.environ.get(FOLDER_VARIABLE)
        if not folder:
            return generate_latest(self.registry)
        for process in {owner_of(path) for path in Path(folder).glob("gauge_live*.db")}:
            if not is_alive(process):  # a worker that was killed before it was ready would hold sgf_ready at 0
                multiprocess.mark_process_dead(process)  # type: ignore[no-untyped-call]  # their stub
        merged = CollectorRegistry()
        multiprocess.MultiProcessCollector(merged)  # type: ignore[no-untyped-call]  # their stub
        return generate_latest(merged)
