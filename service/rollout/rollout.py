"""Which version this worker serves, and how it moves to another one without losing a request.

A version that went live in the store is opened, verified, warmed and validated against its probes beside the one in service;
then one assignment swaps them. Requests in flight finish on the old version, which closes after the last of them.

A version that cannot be model is retried with backoff; the old one stays in service. Content that is wrong and probes that
disagree prove the *version* wrong (`refused`): the store rolls back (`probation`). Every other failure (no GPU, no memory,
an I/O error) is local to this worker (`failed`) and changes nothing for the others.
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
"""Backoff between attempts to load a version: the cause may pass (memory, a file system), or not."""
LOCK_SECONDS = 10.0
"""Longest wait for a lock of the store: an HTTP client and the watch of this worker wait behind it."""
_ABSOLUTE_PATH = re.compile(r"(?<![\w.])/\w")
Live = tuple[int, str | None]
"""The live version and its snapshot; None where the manifest cannot be read: loading the version then finds out why."""


class Rollout:
    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings, self._metrics = settings, metrics
        self.probation = Probation(settings, metrics)
        self._model: ServedModel | None = None
        self._failed: Live | None = None
        """The version that could not be loaded; the next attempt is at `_again_at`."""
        self._pause, self._again_at = 0.0, 0.0
        self._task: asyncio.Task[None] | None = None
        self.failure: dict[str, Any] | None = None
        """The last version that could not be model, and why; None once one could."""

    def current(self) -> ServedModel:
        if self._model is None:
            raise Refusal("not_ready", self._why_not())
        return self._model

    @property
    def ready(self) -> bool:
        return self._model is not None

    def versions(self) -> ModelVersions:
        """Of the model that is served, or is to be. Raises StoreError: there is no such model."""
        store = Store(self._settings.store, LOCK_SECONDS)
        serving = None if self._model is None else self._model.name  # the store may hold other models by now
        return store.model(self._settings.model or serving or store.only_model())

    async def start(self) -> None:
        """Returns when the live version is in service, or the first attempt to load it has failed."""
        await self._look()
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._model is not None:
            self._model.retire()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._settings.poll_seconds)
            self._metrics.measure_memory()
            await self._look()

    async def _look(self) -> None:
        """Nothing in the store stops a start or the watch: what fails here is reported and attempted again."""
        try:
            await self._follow()
        except Exception as error:
            self._note_failure(None, error, self._settings.poll_seconds)

    async def _follow(self) -> None:
        # In threads, because it reads the disk: requests go on meanwhile.
        versions, live = await asyncio.to_thread(self._live)
        if live is None or (live == self._failed and time.monotonic() < self._again_at):
            return
        if self._model is not None and live == (self._model.version, self._model.id):
            self._failed, self.failure = None, None
            await asyncio.to_thread(self.probation.look, versions)
            return
        try:
            model = await asyncio.to_thread(load, versions, live[0], self._settings)
        except Exception as error:
            proven_wrong = isinstance(error, SnapshotError | ProbeError)
            self._metrics.swaps.labels("refused" if proven_wrong else "failed").inc()
            self._retry_later(live)
            self._note_failure(live[0], error, self._pause)
            if proven_wrong:
                await asyncio.to_thread(self.probation.refused, versions, live[0], _public(error))
            return
        self._swap(model)
        await asyncio.to_thread(self.probation.begin, versions, model.version)

    def _live(self) -> tuple[ModelVersions, Live | None]:
        versions = self.versions()
        version = versions.live()
        if version is None:
            return versions, None
        try:
            return versions, (version, versions.manifest(version).snapshot)
        except StoreError:
            return versions, (version, None)

    def _retry_later(self, live: Live) -> None:
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS) if live == self._failed else FIRST_PAUSE_SECONDS
        self._failed, self._again_at = live, time.monotonic() + self._pause

    def _swap(self, model: ServedModel) -> None:
        before, self._model = self._model, model
        self._failed, self.failure = None, None
        manifest = model.snapshot.manifest
        created = datetime.fromisoformat(manifest.created).timestamp()
        self._metrics.set_model(
            model.version, model.id, created, manifest.sizes.nodes, manifest.sizes.adjacency_entries // 2
        )
        self._metrics.swaps.labels("taken").inc()
        LOG.info("serving %s %s (%s)", model.name, model.version, model.engine_name, extra={"seconds": model.seconds})
        if before is not None:
            before.retire()

    def _note_failure(self, version: int | None, error: Exception, pause: float) -> None:
        """`version` is None where the store names none, as before the first publication."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        before, self.failure = self.failure, {"version": version, "error": _public(error), "at": now}
        if version is None and before is not None and before["error"] == self.failure["error"]:
            return  # found again every `poll_seconds`
        what = "the check for a version to serve failed" if version is None else f"version {version} is not loaded"
        kept = "no version is in service" if self._model is None else f"version {self._model.version} stays in service"
        trace = None if isinstance(error, StoreError | EngineError) else error  # the text of ours says everything
        level, name = logging.WARNING if version is None else logging.ERROR, type(error).__name__
        LOG.log(level, "%s (%s: %s); %s, next attempt in %g s", what, name, error, kept, pause, exc_info=trace)

    def _why_not(self) -> str:
        if self.failure is None:
            return "no version of the model is live yet"
        if self.failure["version"] is None:
            return "there is no model to serve yet"
        return f"version {self.failure['version']} could not be taken into service"


def _public(error: Exception) -> str:
    """The cause as HTTP may show it: the text of another library stays in the log where it names an absolute path."""
    if isinstance(error, StoreError | EngineError):
        return str(error)
    text = error.strerror if isinstance(error, OSError) else str(error).partition("\n")[0]
    cause = f": {text}" if text and not _ABSOLUTE_PATH.search(text) else ""
    return f"{type(error).__name__}{cause}; the log has the details"
