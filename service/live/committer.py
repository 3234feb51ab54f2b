"""Commits changes of the graph: validated, logged, applied, answered, in this order.

All requests that wait are committed together, with one flush of the log (group commit), under the lease of the log. An
invalid request gets its error, and has no effect on the others. A change in the log is applied, whatever happens to the
client; a change that is not in the log has no effect.

One thread acquires the lease; another appends to the log and releases the lease. In between, the event loop itself validates
a small group: a thread that runs Python delays each step of the event loop by milliseconds.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from model_store.errors import Behind, Fenced
from model_store.graph_log import GraphLog, Record, Writer
from model_store.live_graph.live_graph import ChangeRequest
from model_store.live_graph.operations import Change
from service.engines.served_model import ServedModel
from service.errors import Refusal
from service.live.group import Committed, Group, Waiting, validate_group
from service.live.replica import Replica
from service.settings import Settings
from service.telemetry.metrics import Metrics

LOG = logging.getLogger("service.live.committer")
MAX_WAITING = 1000
MAX_GROUP, MAX_GROUP_BYTES = 256, 4 * 2**20
"""Most requests, and bytes, in a commit: validating a larger group would delay the answers to its first requests."""
INLINE_BYTES = 32 * 1024
"""A group up to this size is validated on the event loop: a few milliseconds of work."""
INTERVAL_SECONDS = 0.02
"""Shortest time from the start of a group of several requests to the next group, if the event loop also computes answers:
one group of ten takes half the time of five groups of two, and all answers wait while a group is validated or applied."""
ATTEMPTS = 2
"""A worker that lost the lease, because it was paused, acquires it again."""


class Committer:
    """Used by one event loop."""

    def __init__(self, settings: Settings, metrics: Metrics, replica: Replica, num_batches: Callable[[], int]) -> None:
        """`num_batches` returns how many batches of answers the event loop has computed so far."""
        self._settings, self._metrics, self._replica, self._num_batches = settings, metrics, replica, num_batches
        self._queue: deque[Waiting] = deque()
        self._task: asyncio.Task[None] | None = None
        self._bytes = 0

    async def commit(self, request: ChangeRequest, key: str, size: int) -> Committed:
        """Raises Refusal and StoreError. After a refusal with the code `deadline`, the change is never logged.

        Args:
            key: the idempotency key, or "".
            size: the bytes of the request.
        """
        if len(self._queue) >= MAX_WAITING or self._bytes + size > self._settings.max_buffer_bytes:
            self._metrics.record_shed("queue")
            raise Refusal("overloaded", f"{len(self._queue):,} changes of the graph wait to be committed")
        loop, start = asyncio.get_running_loop(), time.perf_counter()
        waiting = Waiting(request, key, size, loop.create_future())
        self._queue.append(waiting)
        self._bytes += size
        if self._task is None:
            self._task = loop.create_task(self._run())
        try:
            result = await self._result(waiting)
        except Exception:  # every failure is counted
            self._count(request, "refused")
            raise
        finally:
            self._bytes -= size
        self._metrics.record_commit(time.perf_counter() - start)
        self._count(request, "applied")
        return result

    async def close(self) -> None:
        """Waits for the commit that runs, and refuses the requests that still wait."""
        for waiting in self._queue:
            if not waiting.result.done():
                waiting.result.set_exception(Refusal("not_ready", "the service is shutting down"))
        if self._task is not None:
            await asyncio.wait([self._task], timeout=self._settings.deadline_seconds)

    async def _result(self, waiting: Waiting) -> Committed:
        try:
            async with asyncio.timeout(self._settings.deadline_seconds):
                return await asyncio.shield(waiting.result)
        except TimeoutError:
            if waiting.is_taken:
                return await waiting.result
            waiting.result.cancel()
            self._metrics.shed.labels("deadline").inc()
            message = f"the change was not committed within {self._settings.deadline_seconds:g} s, and will not be"
            raise Refusal("deadline", message) from None

    async def _run(self) -> None:
        try:
            while self._queue:
                group: list[Waiting] = []
                start, num_batches = time.perf_counter(), self._num_batches()
                try:
                    await self._commit_group(group)
                except Exception as error:  # an error of the log: every request of the group gets it
                    LOG.warning("changes of the graph were not committed: %s", error)
                    for waiting in group or self._take():
                        if not waiting.result.done():
                            waiting.result.set_exception(_with_advice(error))
                if len(group) > 1 and self._num_batches() > num_batches:
                    await asyncio.sleep(start + INTERVAL_SECONDS - time.perf_counter())
        finally:
            self._task = None

    async def _commit_group(self, waiting: list[Waiting]) -> None:
        """Commits the next requests of the queue. Adds them to `waiting`, so that the caller can report errors to them."""
        for attempt in range(ATTEMPTS):
            _, log = self._served()
            lease = HeldLease(log.writer(self._settings.deadline_seconds))
            await asyncio.to_thread(lease.acquire)
            try:
                async with self._replica.lock:
                    await self._replica.advance()
                    waiting += self._take()
                    model, _ = self._served()
                    group = await self._validated(waiting, model, log)
                    records: Sequence[Record] = ()
                    if group.entries:
                        entries = list(group.entries.values())
                        records = await asyncio.to_thread(lease.append, entries, model.sequence)
                    self._apply(group, records, model, log.durability)
            except (Fenced, Behind):
                if attempt == ATTEMPTS - 1:
                    raise
                continue
            finally:
                if not lease.is_released:
                    await asyncio.to_thread(lease.release)
            return

    async def _validated(self, waiting: Sequence[Waiting], model: ServedModel, log: GraphLog) -> Group:
        size = sum(each.size for each in waiting)
        if size <= INLINE_BYTES and not any(each.key and log.remembers(each.key) for each in waiting):
            return validate_group(waiting, model, log)
        return await asyncio.to_thread(validate_group, waiting, model, log)

    def _served(self) -> tuple[ServedModel, GraphLog]:
        model, log = self._replica.model, self._replica.log
        if model is None or log is None:
            raise Refusal("not_ready", "there is no model to serve yet")
        return model, log

    def _take(self) -> list[Waiting]:
        group: list[Waiting] = []
        size = 0
        while self._queue and len(group) < MAX_GROUP and (not group or size + self._queue[0].size <= MAX_GROUP_BYTES):
            waiting = self._queue.popleft()
            if not waiting.result.done():  # else its deadline has passed
                waiting.is_taken = True
                group.append(waiting)
                size += waiting.size
        return group

    def _apply(self, group: Group, records: Sequence[Record], model: ServedModel, durability: str) -> None:
        if group.pending is not None:
            model.live.apply(group.pending, records)
        self._replica.note_change()
        logged = group.settle(records)
        for waiting, error in group.refused.items():
            waiting.result.set_exception(error)
        nodes, edges = model.num_nodes, model.live.num_edges
        for waiting, record in logged.items():
            skipped = Change.from_payload(record.payload).skipped if waiting.request.upsert else 0
            applied, origin = len(waiting.request.operations) - skipped, model.origin_at(record.sequence)
            waiting.result.set_result(Committed(origin, nodes, edges, applied, skipped, durability))

    def _count(self, request: ChangeRequest, result: str) -> None:
        self._metrics.record_operations(result, [operation.op for operation in request.operations])


class HeldLease:
    """The lease of the log. Its methods are called in threads; `append` releases the lease."""

    def __init__(self, context: AbstractContextManager[Writer]) -> None:
        self._context = context
        self.is_released = True

    def acquire(self) -> None:
        """Raises StoreError."""
        self._writer = self._context.__enter__()
        self.is_released = False

    def append(self, entries: Sequence[tuple[str, bytes]], expected: int) -> list[Record]:
        """Raises StoreError: the log cannot be written. The text says whether the changes may be in it."""
        try:
            return self._writer.append(entries, expected)
        finally:
            self.release()

    def release(self) -> None:
        self.is_released = True
        self._context.__exit__(None, None, None)


def _with_advice(error: Exception) -> Exception:
    if isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        advice = "this service may only read the store: log changes in Redis (SGF_GRAPH_LOG=redis)"
        return Refusal("store_unavailable", f"{error}; {advice}")
    return error
