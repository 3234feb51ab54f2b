"""Which version is in service, and how another one takes its place without a request being lost.

A version that went live in the store is opened, verified, warmed and asked its probes beside the one in service; then one
assignment swaps them. Requests in flight finish on the old one, which closes after the last of them. A version that fails
stays out, and is tried again later, less and less often; if it went live only just now, the store goes back (`probation`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime
from typing import Any, NamedTuple

from model_store import ModelVersions, Store, StoreError
from service.errors import Refusal
from service.loaded import LoadedModel, load
from service.metrics import Metrics
from service.probation import Probation
from service.settings import Settings

LOG = logging.getLogger("service.rollout")


FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 300.0
"""How long a version that could not be taken is left alone: what ails it may pass (memory, a file system), or not."""


LOCK_SECONDS = 10.0
"""Longest wait for a lock of the store: an HTTP client and the watch of this worker wait behind it."""


class Live(NamedTuple):
    """What the store says is live."""

    versions: ModelVersions
    version: int
    snapshot: str


class Rollout:
    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings, self._metrics = settings, metrics
        self.probation = Probation(settings, metrics)
        self._loaded: LoadedModel | None = None
        self._refused: str | None = None
        self._pause, self._again_at = 0.0, 0.0
        self._task: asyncio.Task[None] | None = None
        self.failure: dict[str, Any] | None = None
        """The last version that could not be taken into service, and why; None once one could."""

    def current(self) -> LoadedModel:
        if self._loaded is None:
            raise Refusal("not_ready", self._why_not())
        return self._loaded

    @property
    def ready(self) -> bool:
        return self._loaded is not None

    def versions(self) -> ModelVersions:
        """Of the model that is served, or is to be. Raises StoreError: there is no such model."""
        store = Store(self._settings.store, LOCK_SECONDS)
        serving = None if self._loaded is None else self._loaded.model  # another model may have come beside it
        return store.model(self._settings.model or serving or store.only_model())

    async def start(self) -> None:
        """Returns when the live version is in service, or the first attempt to load it has failed."""
        await self._look()
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._loaded is not None:
            self._loaded.retire()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._settings.poll_seconds)
            self._metrics.remember_memory()
            await self._look()

    async def _look(self) -> None:
        """Nothing in the store stops a start or the watch: what fails here is logged and attempted again."""
        try:
            await self._follow()
        except Exception:
            LOG.exception("the check for a new version failed; the next one is in %g s", self._settings.poll_seconds)

    async def _follow(self) -> None:
        # In threads, because it reads the disk: requests go on meanwhile.
        try:
            live = await asyncio.to_thread(self._live)
        except (StoreError, OSError) as error:
            self._note_failure(None, error)
            return
        if live is None or (live.snapshot == self._refused and time.monotonic() < self._again_at):
            return
        if self._loaded is not None and (live.version, live.snapshot) == (self._loaded.version, self._loaded.id):
            self._refused, self.failure = None, None
            await asyncio.to_thread(self.probation.look, live.versions)
            return
        try:
            loaded = await asyncio.to_thread(load, live.versions, live.version, self._settings)
        except Exception as error:  # whatever it is: this version does not serve, the other one goes on
            self._leave_alone(live.snapshot)
            told = self._note_failure(live.version, error)
            await asyncio.to_thread(self.probation.refused, live.versions, live.version, told)
            return
        self._swap(loaded)
        await asyncio.to_thread(self.probation.begin, live.versions, live.version)

    def _live(self) -> Live | None:
        versions = self.versions()
        version = versions.live()
        return None if version is None else Live(versions, version, versions.manifest(version).snapshot)

    def _leave_alone(self, snapshot: str) -> None:
        again = snapshot == self._refused
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS) if again else FIRST_PAUSE_SECONDS
        self._refused, self._again_at = snapshot, time.monotonic() + self._pause

    def _swap(self, loaded: LoadedModel) -> None:
        before, self._loaded = self._loaded, loaded
        self._refused, self.failure = None, None
        self._metrics.serving(loaded, before)
        self._metrics.swaps.labels("taken").inc()
        LOG.info("serving %s %s (%s)", loaded.model, loaded.version, loaded.engine_name, extra={"seconds": loaded.seconds})
        if before is not None:
            before.retire()

    def _note_failure(self, version: int | None, error: Exception) -> str:
        # The store's own sentences name files of a snapshot; those of other libraries may name anything.
        shown = str(error) if isinstance(error, StoreError) else f"{type(error).__name__}; the log has the details"
        told = {"version": version, "error": shown, "at": datetime.now(UTC).isoformat(timespec="seconds")}
        if version is not None:
            self._metrics.swaps.labels("refused").inc()
            LOG.error("version %s stays out: %s", version, error)
        elif self.failure is None or self.failure["error"] != told["error"]:
            LOG.warning("no version to serve: %s", error)
        self.failure = told
        return shown

    def _why_not(self) -> str:
        if self.failure is None:
            return "no version of the model is live yet"
        if self.failure["version"] is None:
            return "there is no model to serve yet"
        return f"version {self.failure['version']} could not be taken into service"
