"""Batches the rows of requests that arrive at the same time.

Cheap rows are computed on the event loop, in one batch per turn: a hop to a thread costs more than they do. Expensive ones
(a hub's neighbourhood, many nodes) have a queue and a process of their own, so that cheap requests pass them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from service.engines.served_model import ServedModel
from service.errors import Refusal
from service.http.request import Request
from service.predict.compute_process import ComputeProcess, ComputeProcessError
from service.predict.results import NodeResults
from service.predict.rows import NewRows, Rows, compute
from service.settings import Settings
from service.telemetry.metrics import Metrics


@dataclass(frozen=True, eq=False)  # compared by identity: arrays have no truth value
class Waiting:
    model: ServedModel
    rows: Rows
    results: asyncio.Future[NodeResults]

    def can_join(self, first: Waiting) -> bool:
        same = self.model is first.model and type(self.rows) is type(first.rows) and self.rows.kind == first.rows.kind
        return same and self.rows.can_merge(self.model)


class Batcher:
    """Used by one event loop."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings, self._metrics = settings, metrics
        self._cheap: deque[Waiting] = deque()
        self._expensive: deque[Waiting] = deque()
        self._is_scheduled = False
        self._process = ComputeProcess()
        self._task: asyncio.Task[None] | None = None
        self._computing: list[Waiting] = []

    @property
    def depth(self) -> int:
        """Expensive requests that wait or are computed."""
        return sum(not waiting.results.done() for waiting in (*self._expensive, *self._computing))

    async def compute(self, model: ServedModel, rows: Rows, request: Request) -> NodeResults:
        """Raises what the engine raises for these rows, and Refusal where they cost or take too much."""
        limit = self._settings.max_recompute
        if isinstance(rows, NewRows) and rows.mode == "exact" and rows.cost > limit:
            message = f"exact answers to this request walk over {rows.cost:,} links, the limit is {limit:,}"
            message += "; send fewer new nodes per request, or use mode frozen"
            raise Refusal("neighborhood_too_large", message, size=rows.cost, limit=limit)
        loop = request.connection.loop  # `asyncio.get_running_loop` is a system call
        waiting = Waiting(model, rows, loop.create_future())
        if rows.cost <= self._settings.inline_cost and rows.is_foreseen:
            self._cheap.append(waiting)
            self._schedule(loop)
            return await waiting.results
        request.place.release()  # it no longer uses the event loop
        self._expensive.append(waiting)
        loop.call_soon(self._start_expensive)  # together with others that arrive in this turn
        return await self._wait(waiting, request)

    async def _wait(self, waiting: Waiting, request: Request) -> NodeResults:
        """Until the rows are computed, the deadline has passed, or the client has disconnected."""
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
                    self._expensive.remove(waiting)  # so that it does not keep its version open

    async def close(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task], timeout=self._settings.deadline_seconds)
        self._process.stop()
        for waiting in (*self._cheap, *self._expensive):
            if not waiting.results.done():
                waiting.results.set_exception(Refusal("not_ready", "the service is shutting down"))

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._cheap and not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._compute_cheap, loop)

    def _compute_cheap(self, loop: asyncio.AbstractEventLoop) -> None:
        """One batch per turn of the event loop."""
        self._is_scheduled = False
        if batch := self._next_batch(self._cheap):
            self._settle(batch, compute(batch[0].model, [waiting.rows for waiting in batch]))
        self._schedule(loop)

    def _start_expensive(self) -> None:
        if self._task is None and (batch := self._next_batch(self._expensive)):
            self._computing = batch
            self._task = asyncio.get_running_loop().create_task(self._compute_expensive(batch))

    async def _compute_expensive(self, batch: list[Waiting]) -> None:
        model, questions = batch[0].model, [waiting.rows for waiting in batch]
        try:
            if model.engine.backend is None:
                results = await asyncio.to_thread(compute, model, questions)
            else:
                results = await self._process.compute(model, questions)
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

    def _settle(self, batch: Sequence[Waiting], results: Sequence[NodeResults | BaseException]) -> None:
        if isinstance(batch[0].rows, NewRows):
            self._metrics.batch_nodes.observe(sum(len(waiting.rows) for waiting in batch))
        for waiting, result in zip(batch, results, strict=True):
            if waiting.results.done():
                continue  # the client has disconnected
            if isinstance(result, BaseException):
                waiting.results.set_exception(result)
                continue
            for count in result.recomputed:
                self._metrics.recomputed.observe(count)
            waiting.results.set_result(result)
