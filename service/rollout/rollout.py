"""Which version this worker serves, and how it changes to another version without losing a request.

The worker opens, verifies and warms up a version that went live in the store, and validates it against its probes, while it
still serves the old version. Then one assignment swaps them. Requests in flight finish on the old version, which closes
after the last of them.

If a version cannot be loaded, the old version stays in service and the worker tries again with backoff. Damaged content and
probes that disagree prove that the *version* is wrong (`refused`): `probation` rolls the store back. All other failures
(no GPU, no memory, an I/O error) concern only this worker (`failed`).
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from datetime import UTC, datetime
from typing import Any

from model_store import ModelVersions, ProbeError, SnapshotError, Store, StoreError
from service.engines.engine import EngineError
from service.engines.served_model import ServedModel, load
from service.errors import Refusal
from service.rollout.probation import Probation
from service.settings import Settings
from service.telemetry.metrics import Metrics

LOG = logging.getLogger("service.rollout.rollout")
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 300.0
"""Backoff between attempts to load a version."""
LOCK_SECONDS = 10.0
"""Longest wait for a lock of the store: a client, or the watch of this worker, waits for it."""
_ABSOLUTE_PATH = re.compile(r"(?<![\w.])/\w")
Live = tuple[int, str | None]
"""The live version and its snapshot; None if the manifest cannot be read, in which case loading fails with the reason."""


class Rollout:
    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings, self._metrics = settings, metrics
        self.probation = Probation(settings, metrics)
        self.model: ServedModel | None = None
        """The version in service."""
        self._failed: Live | None = None
        """The version that could not be loaded. The next attempt is at `_retry_at`, after a pause of `_pause`."""
        self._pause, self._retry_at = 0.0, 0.0
        self._task: asyncio.Task[None] | None = None
        self.failure: dict[str, Any] | None = None
        """The version that could not be loaded and the reason; None after a success."""

    def current(self) -> ServedModel:
        """Raises Refusal (not_ready)."""
        if self.model is not None:
            return self.model
        if self.failure is None:
            raise Refusal("not_ready", "no version of the model is live yet")
        if self.failure["version"] is None:
            raise Refusal("not_ready", "there is no model to serve yet")
        raise Refusal("not_ready", f"version {self.failure['version']} could not be taken into service")

    def versions(self) -> ModelVersions:
        """The versions of the model to serve. Raises StoreError if there is no such model."""
        store = Store(self._settings.store, LOCK_SECONDS)
        served = None if self.model is None else self.model.name  # the store may have several models by now
        return store.model(self._settings.model or served or store.only_model())

    async def start(self) -> None:
        """Returns when the live version is in service, or the first attempt to load it has failed."""
        await self._check()
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self.model is not None:
            self.model.retire()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._settings.poll_seconds)
            self._metrics.measure_memory()
            await self._check()

    async def _check(self) -> None:
        """A failure of the store is reported, and stops neither the start nor the watch."""
        try:
            await self._follow_store()
        except Exception as error:  # of the store, its file system, or a defect
            self._report_failure(None, error, self._settings.poll_seconds)

    async def _follow_store(self) -> None:
        """Reads the disk in threads, so that requests continue."""
        versions, live = await asyncio.to_thread(self._read_live)
        if live is None or (live == self._failed and time.monotonic() < self._retry_at):
            return
        if self.model is not None and live == (self.model.version, self.model.id):
            self._failed, self.failure = None, None
            await asyncio.to_thread(self.probation.check, versions)
            return
        version = live[0]
        try:
            model = await asyncio.to_thread(load, versions, version, self._settings)
        except Exception as error:  # whatever it is, the old version stays in service
            is_wrong = isinstance(error, SnapshotError | ProbeError)
            self._metrics.swaps.labels("refused" if is_wrong else "failed").inc()
            self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS) if live == self._failed else FIRST_PAUSE_SECONDS
            self._failed, self._retry_at = live, time.monotonic() + self._pause
            self._report_failure(version, error, self._pause)
            if is_wrong:
                await asyncio.to_thread(self.probation.reject, versions, version, _public_reason(error))
            return
        self._swap(model)
        await asyncio.to_thread(self.probation.begin, versions, version)

    def _read_live(self) -> tuple[ModelVersions, Live | None]:
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
        self._failed, self.failure = None, None
        manifest = model.snapshot.manifest
        created, edges = datetime.fromisoformat(manifest.created).timestamp(), manifest.sizes.adjacency_entries // 2
        self._metrics.set_model(model.version, model.id, created, model.num_nodes, edges)
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
        trace = None if isinstance(error, StoreError | EngineError) else error  # the text of these says everything
        level, name = logging.WARNING if version is None else logging.ERROR, type(error).__name__
        LOG.log(level, "%s (%s: %s); %s, next attempt in %g s", event, name, error, state, pause, exc_info=trace)


def _public_reason(error: Exception) -> str:
    """The reason as clients may see it: without the text of another library if it contains an absolute path."""
    if isinstance(error, StoreError | EngineError):
        return str(error)
    text = error.strerror if isinstance(error, OSError) else str(error).partition("\n")[0]
    cause = f": {text}" if text and not _ABSOLUTE_PATH.search(text) else ""
    return f"{type(error).__name__}{cause}; the log has the details"
