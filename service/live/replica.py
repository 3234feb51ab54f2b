"""This worker's copy of the live graph, which follows the log. Requests may wait for a change.

The graph of the version in service advances under `lock`, in two steps: a thread reads records and validates them, and the
event loop applies their effect, between two batches. So an answer never sees half of a change. A version is swapped under
the same lock, after it has applied the whole log: answers never go back in sequence.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

from model_store import StoreError
from model_store.graph_log import GraphLog, Record
from model_store.live_graph.pending import PendingChanges
from service.admission import Slot
from service.engines.served_model import ServedModel
from service.errors import Refusal
from service.redis_connection import Backoff
from service.settings import Settings
from service.telemetry.metrics import Metrics

LOG = logging.getLogger("service.live.replica")
WAIT_SECONDS = 0.5
"""The longest wait for a record in a thread: a shutdown waits for it."""
FOLLOW_PAUSE_SECONDS = 0.02
"""The pause after this worker has reached the end of the log, by a commit or a read, before it waits for records again."""
SLICE_RECORDS, SLICE_BYTES = 256, 64 * 1024
"""Most records, and bytes, that are applied between two batches of answers. A record is never divided."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.25, 10.0
PROGRESS_SECONDS = 5.0


class Replica:
    """Used by one event loop."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings, self._metrics = settings, metrics
        self.model: ServedModel | None = None
        """The version in service."""
        self.log: GraphLog | None = None
        """The log of its graph."""
        self.lock = asyncio.Lock()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None
        self._complete_at = time.monotonic()
        """When this worker last knew that it had applied the whole log."""

    @property
    def lag_seconds(self) -> float:
        """The time since this worker last knew that it has applied the whole log, less the time of an undisturbed wait."""
        return max(0.0, time.monotonic() - self._complete_at - 2 * WAIT_SECONDS)

    def start(self) -> None:
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    @asynccontextmanager
    async def taking(self, model: ServedModel, log: GraphLog) -> AsyncIterator[None]:
        """Takes a version that has replayed `log` into service; the caller swaps it inside the `with` block.

        Takes ownership of `log`: follows it from now on, or closes it if the log of the same graph is open already.

        Raises StoreError.
        """
        async with self.lock:
            old = self.log
            if old is not None and self.model is not None and self.model.log == model.log:
                log.close()
                log = old
            else:
                self._warn_of_changes_left(model)
            await asyncio.to_thread(replay, model, log)  # records since the first replay
            yield
            self.model, self.log = model, log
            self.note_change()
            if old is not None and old is not log:
                old.close()

    async def reach(self, sequence: int, slot: Slot) -> None:
        """Waits until the graph contains a change, without a slot in the lane. Raises Refusal (behind)."""
        if self._sequence >= sequence:
            return
        slot.release()
        waiting = sequence, asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        try:
            async with asyncio.timeout(self._settings.deadline_seconds):
                await waiting[1]
        except TimeoutError:
            message = f"the graph is at sequence {self._sequence} here, and the request needs {sequence}"
            raise Refusal("behind", message, sequence=self._sequence) from None
        finally:
            self._waiting.remove(waiting)

    async def advance(self) -> None:
        """Applies the log as far as this process has followed it. The caller holds the lock. Raises StoreError."""
        model, log = self.model, self.log
        if model is None or log is None or log.tail is None:
            return
        followed_at = time.monotonic()
        while model.sequence < log.tail.position.sequence:
            records, pending = await asyncio.to_thread(_read, model, log)
            if pending is None:
                break
            model.live.apply(pending, records)
            self.note_change()
        self._complete_at = followed_at

    def note_change(self) -> None:
        """Wakes requests that wait for this sequence, and updates the metrics. Call it on the event loop after a change."""
        model = self.model
        if model is None:
            return
        for sequence, future in self._waiting:
            if sequence <= model.sequence and not future.done():
                future.set_result(None)
        self._metrics.set_graph(model.sequence, model.num_nodes, model.live.num_edges, len(model.live.graph.adjacency))

    def _warn_of_changes_left(self, model: ServedModel) -> None:
        if self.model is not None and self.model.is_changed:
            changes = self.model.sequence - self.model.live.base_sequence
            left = f"leaves {changes} changes of the graph of version {self.model.version} behind"
            LOG.warning("version %s has another graph and %s; they stay in the log", model.version, left)

    @property
    def _sequence(self) -> int:
        return 0 if self.model is None else self.model.sequence

    async def _follow(self) -> None:
        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while True:
            if self.model is None or self.log is None:
                await asyncio.sleep(WAIT_SECONDS)
                continue
            try:
                pause = self._complete_at + FOLLOW_PAUSE_SECONDS - time.monotonic()
                if pause > 0:  # this worker has just reached the end of the log
                    await asyncio.sleep(pause)
                waiting_since = time.monotonic()
                if await asyncio.to_thread(self.log.wait, self._sequence, WAIT_SECONDS):
                    async with self.lock:
                        await self.advance()
                else:
                    self._complete_at = waiting_since
            except Exception as error:  # the worker continues to answer, at its last sequence
                pause, trace = backoff.grow(), None if isinstance(error, StoreError) else error
                message = "the graph log cannot be followed (%s); answers stay at sequence %d, next attempt in %g s"
                LOG.error(message, error, self._sequence, pause, exc_info=trace)
                await asyncio.sleep(pause)
            else:
                if backoff.seconds:
                    LOG.info("the graph log can be followed again; the graph is at sequence %d", self._sequence)
                    backoff.reset()


def replay(model: ServedModel, log: GraphLog, report: Callable[[int, int], None] | None = None) -> None:
    """Applies the rest of the log to a version that answers no requests yet. Called in a thread. Raises StoreError.

    `report` gets the last applied sequence and the last sequence of the log: first, and after every slice.
    """
    last, reported_at = log.position().sequence, time.monotonic()
    while True:
        if report is not None:
            report(model.sequence, max(last, model.sequence))
        records, pending = _read(model, log)
        if pending is None:
            return
        model.live.apply(pending, records)
        if time.monotonic() > reported_at + PROGRESS_SECONDS:
            reported_at, date = time.monotonic(), datetime.fromtimestamp(records[-1].time, UTC)
            progress = f"change {model.sequence:,} of {last:,}"
            LOG.info("version %s has applied %s, of %s", model.version, progress, date.isoformat())


def _read(model: ServedModel, log: GraphLog) -> tuple[Sequence[Record], PendingChanges | None]:
    """The next records, and their computed effect; None at the end of the log.

    The event loop may read the graph meanwhile, but must not change it.
    """
    records: list[Record] = []
    size = 0
    for record in log.read(model.sequence, SLICE_RECORDS):
        size += len(record.payload)
        if records and size > SLICE_BYTES:
            break
        records.append(record)
    if not records:
        return records, None
    pending = model.live.read(records)
    pending.changes  # noqa: B018  # computed here, not on the event loop
    return records, pending
