"""The roll-out: this worker follows the live version of the store, without losing a request.

The worker opens, verifies and warms up a version that went live in the store, validates it against its probes, and applies
the changes of the graph that the log holds, while it still serves the old version. Then one assignment swaps them. Requests
in flight finish on the old version, which closes after the last of them.

If a version cannot be loaded, the old version stays in service and the worker tries again with backoff. Damaged content
and probes that are not reproduced prove that the *version* is wrong (`refused`): `probation` rolls the store back. All other
failures (no GPU, no memory, an I/O error) concern only this worker (`failed`).
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from model_store import ModelVersions, ProbeError, SnapshotError, Store, StoreError, StoreUnavailable
from model_store.graph_log import GraphLog
from service.engines.engine import EngineError
from service.engines.served_model import ServedModel, load
from service.errors import Refusal
from service.live.replica import Replica, replay
from service.redis_connection import Backoff, graph_log_options
from service.rollout.probation import Probation
from service.settings import Settings
from service.store_reader import StoreReader
from service.telemetry.metrics import Metrics
from service.telemetry.process_info import is_marked, mark

LOG = logging.getLogger("service.rollout.rollout")
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 300.0
"""Backoff between attempts to load a version."""
LOCK_SECONDS = 10.0
"""Longest wait for a lock of the store: a client or the watch of this worker waits as long."""
STALL_SECONDS = 10.0
"""A store that takes longer to name its live version is reported."""
POLL_SECONDS, REPLAY_SECONDS = 0.05, 2.0
"""In `start`: time between two checks, and longest wait for a version that applies changes."""
WARM_UP_ENTRIES = 1_000_000
"""Adjacency entries that the warm-up of stale states reads before a version is served: below a second."""
_ABSOLUTE_PATH = re.compile(r"(?<![\w.])/\w")
LiveSnapshot = tuple[int, str | None]
"""The live version and its snapshot; None if the manifest cannot be read, in which case loading fails with the reason."""


class Rollout:
    def __init__(self, settings: Settings, metrics: Metrics, replica: Replica) -> None:
        self._settings, self._metrics, self._replica = settings, metrics, replica
        self.probation = Probation(settings, metrics)
        self.model: ServedModel | None = None
        """The served model; None before the first one is loaded."""
        self._failed: LiveSnapshot | None = None
        """The version that could not be loaded. The next attempt is at `_retry_at`."""
        self._backoff, self._retry_at = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS), 0.0
        self._task: asyncio.Task[None] | None = None
        self._reader = StoreReader()
        self.failure: dict[str, Any] | None = None
        """The version that could not be loaded and the reason; None after a success."""
        self._replaying: tuple[int, int, int] | None = None
        """While a version applies the changes of the graph: its number, the last change applied, and the last change of
        the log."""

    def current(self) -> ServedModel:
        """Raises Refusal (not_ready)."""
        if self.model is not None:
            return self.model
        if self._replaying is not None:
            version, applied, last = self._replaying
            message = f"version {version} is being loaded: it has applied change {applied:,} of {last:,} of the graph"
            raise Refusal("not_ready", message, sequence=applied, log_sequence=last)
        if self.failure is None:
            raise Refusal("not_ready", "no version of the model is live yet")
        if self.failure["version"] is None:
            raise Refusal("not_ready", f"waiting for a model to serve: {self.failure['error']}")
        raise Refusal("not_ready", f"version {self.failure['version']} could not be loaded; GET /models says why")

    def versions(self) -> ModelVersions:
        """The versions of the model to serve. Raises StoreError if there is no such model."""
        store = Store(self._settings.store, LOCK_SECONDS, graph_log_options(self._settings))
        served = None if self.model is None else self.model.name  # the store may have several models by now
        return store.model(self._settings.model or served or store.only_model())

    async def start(self) -> None:
        """Returns when the live version is served, or the first attempt to load it has failed.

        If no worker of this server is ready, it also returns when the version has applied changes of the graph for
        REPLAY_SECONDS: the refusals of `current` then report its progress. Otherwise the other workers answer meanwhile.
        """
        checked = asyncio.Event()
        self._task = asyncio.create_task(self._watch(checked))
        replaying_since: float | None = None
        while not checked.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await checked.wait()
            if self._replaying is not None:
                replaying_since = replaying_since or time.monotonic()
                if time.monotonic() > replaying_since + REPLAY_SECONDS and not is_marked("ready"):
                    return

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self.model is not None:
            self.model.retire()

    async def _watch(self, checked: asyncio.Event) -> None:
        await self._check()
        checked.set()
        while True:
            await asyncio.sleep(self._settings.poll_seconds)
            self._metrics.measure_memory()
            await self._check()

    async def _check(self) -> None:
        """Follows the store once. A failure is reported, and stops neither the start nor the watch."""
        try:
            async with self._reporting_stalls():
                versions, live = await self._reader.run(self._read_live)
            await self._follow_store(versions, live)
        except Exception as error:  # of the store, its file system, or a defect
            self._report_failure(None, error, self._settings.poll_seconds)

    @asynccontextmanager
    async def _reporting_stalls(self) -> AsyncIterator[None]:
        """Reports a store that has not answered for STALL_SECONDS; the call goes on, because nothing can end it."""
        stalled = StoreUnavailable(f"the store has not answered for {STALL_SECONDS:g} s")
        loop = asyncio.get_running_loop()
        timer = loop.call_later(STALL_SECONDS, self._report_failure, None, stalled, self._settings.poll_seconds)
        try:
            yield
        finally:
            timer.cancel()

    async def _follow_store(self, versions: ModelVersions, live: LiveSnapshot | None) -> None:
        """Loads the live version if it is not served yet. Reads the disk in threads, so that requests continue."""
        if live is None or (live == self._failed and time.monotonic() < self._retry_at):
            return
        if self.model is not None and live == (self.model.version, self.model.id):
            self._failed, self.failure = None, None
            await self._reader.run(self.probation.check, versions)
            return
        version = live[0]
        try:
            await self._load_and_swap(versions, version)
        except Exception as error:  # of any kind: the old version stays in service
            is_wrong = isinstance(error, SnapshotError | ProbeError)
            self._metrics.swaps.labels("refused" if is_wrong else "failed").inc()
            if live != self._failed:
                self._backoff.reset()
            self._failed, self._retry_at = live, time.monotonic() + self._backoff.grow()
            self._report_failure(version, error, self._backoff.seconds)
            if is_wrong:
                await self._reader.run(self.probation.reject, versions, version, _public_reason(error))
            return
        await self._reader.run(self.probation.begin, versions, version)

    async def _load_and_swap(self, versions: ModelVersions, version: int) -> None:
        model = await self._reader.run(load, versions, version, self._settings)
        try:
            log = model.log.open()
            await self._reader.run(self._prepare, model, log)
            async with self._replica.taking(model, log):
                self._swap(model)
        except BaseException:
            model.retire()
            raise
        finally:
            self._replaying = None

    def _prepare(self, model: ServedModel, log: GraphLog) -> None:
        """Applies the changes of the graph, and computes states that they have made stale. Runs in a thread."""

        def report(applied: int, last: int) -> None:
            self._replaying = model.version, applied, last

        replay(model, log, report)
        model.live.graph.warm_up(WARM_UP_ENTRIES)

    def _read_live(self) -> tuple[ModelVersions, LiveSnapshot | None]:
        self._metrics.measure_store()
        versions = self.versions()
        version = versions.live()
        if version is None:
            return versions, None
        try:
            return versions, (version, versions.manifest(version).snapshot)
        except StoreError:
            return versions, (version, None)

    def _swap(self, model: ServedModel) -> None:
        old, self.model = self.model, model
        mark("ready")
        self._failed, self.failure = None, None
        manifest = model.snapshot.manifest
        created = datetime.fromisoformat(manifest.created).timestamp()
        self._metrics.set_model(model.version, model.id, created)
        self._metrics.swaps.labels("taken").inc()
        LOG.info("serving %s %s (%s)", model.name, model.version, model.engine_name, extra={"seconds": model.seconds})
        if old is not None:
            old.retire()

    def _report_failure(self, version: int | None, error: Exception, pause: float) -> None:
        """`version` is None if the store names no version, such as before the first publication."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        last, self.failure = self.failure, {"version": version, "error": _public_reason(error), "at": now}
        if version is None and last is not None and last["error"] == self.failure["error"]:
            return  # logged before: this check runs every `poll_seconds`
        event = "the check for a version to serve failed" if version is None else f"version {version} is not loaded"
        state = "no version is in service" if self.model is None else f"version {self.model.version} stays in service"
        trace = None if isinstance(error, StoreError | EngineError) else error  # their text is complete
        level, name = logging.WARNING if version is None else logging.ERROR, type(error).__name__
        LOG.log(level, "%s (%s: %s); %s, next attempt in %g s", event, name, error, state, pause, exc_info=trace)


def _public_reason(error: Exception) -> str:
    """The reason as clients may see it: without the text of another library if it contains an absolute path."""
    if isinstance(error, StoreError | EngineError):
        return str(error)
    text = error.strerror if isinstance(error, OSError) else str(error).partition("\n")[0]
    cause = f": {text}" if text and not _ABSOLUTE_PATH.search(text) else ""
    return f"{type(error).__name__}{cause}; the log has the details"
