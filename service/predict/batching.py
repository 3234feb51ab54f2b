"""Batches the rows of requests that arrive at the same time.

Cheap rows are computed on the event loop, in one batch per turn: a switch to a thread would cost more than the
computation. If changes of the graph have made states stale that a batch reads, these are computed first, in several turns,
and other batches are computed in between. Expensive rows (a hub's neighbourhood, a large batch) have a queue and a process
of their own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from service.engines.served_model import ServedModel
from service.errors import Refusal
from service.http.request import Request
from service.predict.compute_process import ComputeProcess, ComputeProcessError
from service.predict.rows import KnownRows, Rows, compute, refresh
from service.settings import Settings
from service.telemetry.metrics import Metrics

LOG = logging.getLogger("service.predict.batching")
Observe = Callable[[ServedModel, Rows, Any], None]
"""Called with all results, in the turn of the event loop in which they were computed: the graph has not changed since."""
MAX_TURNS = 64
"""A batch waits for its stale states for at most this many turns, then computes the rest of them at once: steady changes
would make it wait without end."""


@dataclass(eq=False)  # compared by identity: arrays have no truth value. A frozen one takes twice the time to make
class Waiting:
    model: ServedModel
    rows: Rows
    results: asyncio.Future[Any]

    def can_join(self, first: Waiting) -> bool:
        same = self.model is first.model and type(self.rows) is type(first.rows) and self.rows.kind == first.rows.kind
        return same and self.rows.can_merge(self.model)


class Batcher:
    """Used by one event loop."""

    def __init__(self, settings: Settings, metrics: Metrics, observe: Observe | None = None) -> None:
        self._settings, self._metrics, self._observe = settings, metrics, observe
        self._cheap: deque[Waiting] = deque()
        self._stale: deque[tuple[list[Waiting], int]] = deque()
        """Cheap batches whose stale states are being computed, and the turns that are left."""
        self._expensive: deque[Waiting] = deque()
        self._is_scheduled = False
        self.num_batches = 0
        """Batches that the event loop has computed."""
        self._process = ComputeProcess()
        self._task: asyncio.Task[None] | None = None
        self._computing: list[Waiting] = []

    @property
    def depth(self) -> int:
        """Expensive requests that wait or are computed."""
        return sum(not waiting.results.done() for waiting in (*self._expensive, *self._computing))

    async def compute(self, model: ServedModel, rows: Rows, request: Request) -> Any:
        """The results of the rows. Raises what the engine raises for these rows, and Refusal if they take too long."""
        loop = request.connection.loop  # in Python 3.11 `asyncio.get_running_loop` calls getpid, a system call
        waiting = Waiting(model, rows, loop.create_future())
        if rows.cost <= self._settings.inline_cost and rows.has_exact_cost:
            self._cheap.append(waiting)
            self._schedule(loop)
            return await waiting.results
        request.slot.release()  # it no longer uses the event loop
        self._expensive.append(waiting)
        loop.call_soon(self._start_expensive)  # together with others that arrive in this turn
        return await self._wait(waiting, request)

    async def _wait(self, waiting: Waiting, request: Request) -> Any:
        """Waits until the rows are computed. Raises Refusal if the deadline passes or the client disconnects."""
        watcher = asyncio.get_running_loop().create_task(request.gone())
        watcher.add_done_callback(lambda _: waiting.results.cancel())
        try:
            async with asyncio.timeout(self._settings.deadline_seconds):
                return await waiting.results
        except TimeoutError:
            self._metrics.shed.labels("deadline").inc()
            raise Refusal("deadline", f"no answer within {self._settings.deadline_seconds:g} s") from None
        except asyncio.CancelledError:
            if not watcher.done():
                raise
            self._metrics.shed.labels("gone").inc()
            raise Refusal("gone", "the client closed the connection") from None
        finally:
            watcher.cancel()
            if not waiting.results.done() or waiting.results.cancelled():
                with suppress(ValueError):
                    self._expensive.remove(waiting)  # so that the queue does not keep the version open

    async def close(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task], timeout=self._settings.deadline_seconds)
        self._process.stop()
        stale = (waiting for batch, _ in self._stale for waiting in batch)
        for waiting in (*self._cheap, *stale, *self._expensive):
            if not waiting.results.done():
                waiting.results.set_exception(Refusal("not_ready", "the service is shutting down"))

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if (self._cheap or self._stale) and not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._compute_cheap, loop)

    def _compute_cheap(self, loop: asyncio.AbstractEventLoop) -> None:
        """One batch per turn of the event loop, and one step of a batch with stale states."""
        self._is_scheduled = False
        if self._stale:
            self._compute_unless_stale(*self._stale.popleft())
        if batch := self._next_batch(self._cheap):
            self._compute_unless_stale(batch, MAX_TURNS)
        self._schedule(loop)

    def _compute_unless_stale(self, batch: list[Waiting], turns: int) -> None:
        model, rows = batch[0].model, [waiting.rows for waiting in batch]
        if turns and not refresh(model, rows):
            self._stale.append((batch, turns - 1))
        else:
            self.num_batches += 1
            self._settle(batch, compute(model, rows))

    def _start_expensive(self) -> None:
        if self._task is None and (batch := self._next_batch(self._expensive)):
            self._computing = batch
            self._task = asyncio.get_running_loop().create_task(self._compute_expensive(batch))

    async def _compute_expensive(self, batch: list[Waiting]) -> None:
        model, rows = batch[0].model, [waiting.rows for waiting in batch]
        try:
            if model.engine.backend is None and not (model.is_changed or rows[0].reads_live_graph):
                results = await asyncio.to_thread(compute, model.unchanged, rows)
            else:
                results = await self._process.compute(model, rows)
        except BaseException as error:  # no request is left waiting
            reason = "the process that computed this request was killed, twice; it may need more memory than there is"
            refusal = Refusal("internal", reason) if isinstance(error, ComputeProcessError) else error
            self._settle(batch, [refusal] * len(batch))
            if not isinstance(error, Exception):
                raise
        else:
            self._settle(batch, results)
        finally:
            self._task, self._computing = None, []
            self._start_expensive()

    def _next_batch(self, queue: deque[Waiting]) -> list[Waiting]:
        """The oldest request and those behind it that can join it, up to a cost. Drops requests whose clients have gone."""
        batch: list[Waiting] = []
        later: deque[Waiting] = deque()
        cost = 0
        while queue:
            waiting = queue.popleft()
            if waiting.results.done():
                continue
            if batch and not (waiting.can_join(batch[0]) and cost + waiting.rows.cost <= self._settings.batch_cost):
                later.append(waiting)
                continue
            batch.append(waiting)
            cost += waiting.rows.cost
            if not waiting.rows.can_merge(waiting.model):
                break
        queue.extendleft(reversed(later))
        return batch

    def _settle(self, batch: Sequence[Waiting], results: Sequence[Any]) -> None:
        if not isinstance(batch[0].rows, KnownRows):
            self._metrics.record_batch(sum(len(waiting.rows) for waiting in batch))
        for waiting, result in zip(batch, results, strict=True):
            if waiting.results.done():
                continue  # the client has disconnected
            if isinstance(result, BaseException):
                waiting.results.set_exception(result)
                continue
            self._metrics.record_recomputed(result.recomputed)
            waiting.results.set_result(result)
            if self._observe is not None:
                try:
                    self._observe(waiting.model, waiting.rows, result)
                except Exception:  # of the monitoring: the answer is right
                    LOG.exception("an answer could not be observed")
