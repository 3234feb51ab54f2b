"""Which version is in service, and how another one takes its place without a request being lost.

A version that went live in the store is opened, verified, warmed and asked its probes beside the one in service; then one
assignment swaps them. Requests in flight finish on the old one, which closes after the last of them. A version that fails
stays out, and is tried again only when the store names another one.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

from model_store import ModelVersions, Store, StoreError
from service.errors import Refusal
from service.loaded import LoadedModel, load
from service.metrics import Metrics
from service.settings import Settings

LOG = logging.getLogger("service.rollout")


class Rollout:
    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings, self._metrics = settings, metrics
        self._loaded: LoadedModel | None = None
        self._failed: int | None = None
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
        """Raises StoreError: there is no such model."""
        store = Store(self._settings.store)
        return store.model(self._settings.model or store.only_model())

    async def start(self) -> None:
        """Returns when the live version is in service, or cannot be for now."""
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
            try:
                await self._look()
            except Exception:
                LOG.exception("looking for a new version failed; the next look may not")

    async def _look(self) -> None:
        try:
            versions = self.versions()
            live = versions.live()
        except (StoreError, OSError) as error:
            self._note_failure(None, error)
            return
        serving = None if self._loaded is None else self._loaded.version
        if live is None or live == serving or live == self._failed:
            if live is not None and live == serving:
                self._failed, self.failure = None, None
            return
        try:
            # In a thread of its own: reading a large snapshot must not hold up requests.
            loaded = await asyncio.to_thread(load, versions, live, self._settings)
        except Exception as error:  # whatever it is: this version does not serve, the other one goes on
            self._failed = live
            self._note_failure(live, error)
            return
        self._swap(loaded)

    def _swap(self, loaded: LoadedModel) -> None:
        before, self._loaded = self._loaded, loaded
        self._failed, self.failure = None, None
        self._metrics.serving(loaded, before)
        self._metrics.swaps.labels("taken").inc()
        LOG.info("serving %s %s (%s)", loaded.model, loaded.version, loaded.engine.name, extra={"seconds": loaded.seconds})
        if before is not None:
            before.retire()

    def _note_failure(self, version: int | None, error: Exception) -> None:
        told = {"version": version, "error": f"{error}", "at": datetime.now(UTC).isoformat(timespec="seconds")}
        if version is not None:
            self._metrics.swaps.labels("refused").inc()
            LOG.error("version %s stays out: %s", version, error)
        elif self.failure is None or self.failure["error"] != told["error"]:
            LOG.warning("no version to serve: %s", error)
        self.failure = told

    def _why_not(self) -> str:
        if self.failure is None:
            return "no version of the model is live yet"
        if self.failure["version"] is None:
            return "there is no model to serve yet"
        return f"version {self.failure['version']} could not be taken into service"
