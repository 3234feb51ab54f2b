"""Questions of requests that arrive at the same time are answered together.

Cheap questions are answered on the event loop, in one batch per turn: a hop to a thread costs more than they do. Expensive
ones (a hub's neighbourhood, many nodes) go to the worker thread, in a queue of their own, so that cheap questions pass them.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.http.errors import Refusal
from service.http.messages import Request
from service.predict.results import Outcome
from service.rollout.served_model import LoadedModel
from service.settings import Settings
from service.telemetry.metrics import Metrics
from sgformer import NewNodes
from sgformer.request_time.extension import Mode
from sgformer.request_time.neighborhood import cost_of

FORESEEN_LAYERS = 3
"""Up to which the cost of an exact answer is known before the graph is walked."""


@dataclass(frozen=True, eq=False)  # compared by identity: its arrays have no truth value
class KnownRows:
    """Rows of the graph, already checked."""

    loaded: LoadedModel
    rows: NDArray[np.int64]
    embeddings: bool

    @property
    def kind(self) -> object:
        """Questions of one kind are answered in one batch; None: alone."""
        return (id(self.loaded), self.embeddings) if self.loaded.merges or not self.embeddings else None

    @property
    def cost(self) -> int:
        return len(self.rows) * (4 if self.embeddings else 1)

    is_foreseen = True

    def __len__(self) -> int:
        return len(self.rows)

    @staticmethod
    def answer(questions: Sequence[KnownRows], _limit: int, _metrics: Metrics) -> Outcome:
        first, start = questions[0], time.perf_counter()
        rows = first.rows if len(questions) == 1 else np.concatenate([question.rows for question in questions])
        found = first.loaded.known(rows, first.embeddings)
        return Outcome.of(found, first.loaded.config.task, start, first.loaded.exactness("exact", first.embeddings))


@dataclass(frozen=True, eq=False)
class NewRows:
    """Nodes that the graph does not have, already checked."""

    loaded: LoadedModel
    new: NewNodes
    mode: Mode
    cost: int

    @classmethod
    def of(cls, loaded: LoadedModel, new: NewNodes, mode: Mode) -> NewRows:
        return cls(
            loaded, new, mode, cost_of(new, loaded.snapshot.adjacency, loaded.config.layers if mode == "exact" else 1)
        )

    @property
    def is_foreseen(self) -> bool:
        return self.mode == "frozen" or self.loaded.config.layers <= FORESEEN_LAYERS

    @property
    def kind(self) -> object:
        return (id(self.loaded), self.mode) if self.loaded.merges and self.is_foreseen else None

    def __len__(self) -> int:
        return len(self.new)

    @staticmethod
    def answer(questions: Sequence[NewRows], limit: int, metrics: Metrics) -> Outcome:
        first, start = questions[0], time.perf_counter()
        merged = first.new if len(questions) == 1 else NewNodes.merged([question.new for question in questions])
        # The limit is per request. A batch of several has only questions whose cost was checked when they arrived.
        found = first.loaded.engine.extended(merged, first.mode, limit if len(questions) == 1 else None)
        metrics.batch_nodes.observe(len(merged))
        for count in found.recomputed.tolist():
            metrics.recomputed.observe(count)
        return Outcome.of(found, first.loaded.config.task, start, first.loaded.exactness(found.exactness))


@dataclass(frozen=True, eq=False)
class Waiting:
    question: KnownRows | NewRows
    answer: asyncio.Future[Outcome]


class Batcher:
    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings, self._metrics = settings, metrics
        self._cheap: deque[Waiting] = deque()
        self._expensive: deque[Waiting] = deque()
        self._scheduled = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="answers")
        self._running: asyncio.Task[None] | None = None
        self._in_thread: list[Waiting] = []

    @property
    def depth(self) -> int:
        """Requests that wait for an answer of the worker thread."""
        return sum(not waiting.answer.done() for waiting in (*self._expensive, *self._in_thread))

    async def ask(self, question: KnownRows | NewRows, request: Request) -> Outcome:
        """Raises what the engine raises for this question, and Refusal where it costs or takes too much."""
        limit = self._settings.max_recompute
        if isinstance(question, NewRows) and question.mode == "exact" and question.cost > limit:
            told = f"exact answers to this request walk over {question.cost:,} links, the limit is {limit:,}"
            told += "; send fewer new nodes per request, or use mode frozen"
            raise Refusal("neighborhood_too_large", told, size=question.cost, limit=limit)
        loop = request.connection.loop  # `asyncio.get_running_loop` is a system call
        waiting = Waiting(question, loop.create_future())
        if question.cost <= self._settings.inline_cost and question.is_foreseen:
            self._cheap.append(waiting)
            self._schedule(loop)
            return await waiting.answer
        request.place.release()  # it runs no longer on the event loop
        self._expensive.append(waiting)
        loop.call_soon(self._start_thread)  # together with others that arrive in this turn
        return await self._wait(waiting, request)

    async def _wait(self, waiting: Waiting, request: Request) -> Outcome:
        """Until the thread has answered, the deadline has passed, or the client has gone."""
        watcher = asyncio.get_running_loop().create_task(request.gone())
        watcher.add_done_callback(lambda _: waiting.answer.cancel())
        try:
            async with asyncio.timeout(self._settings.deadline_seconds):
                return await waiting.answer
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
            if not waiting.answer.done() or waiting.answer.cancelled():
                with suppress(ValueError):
                    self._expensive.remove(waiting)  # so that it does not keep its version open

    async def close(self) -> None:
        if self._running is not None:
            await asyncio.wait([self._running], timeout=self._settings.deadline_seconds)
        self._thread.shutdown(wait=False, cancel_futures=True)
        for waiting in (*self._cheap, *self._expensive):
            if not waiting.answer.done():
                waiting.answer.set_exception(Refusal("not_ready", "the service is shutting down"))

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._cheap and not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._answer_cheap, loop)

    def _answer_cheap(self, loop: asyncio.AbstractEventLoop) -> None:
        """One batch per turn of the event loop."""
        self._scheduled = False
        if batch := self._next_batch(self._cheap):
            _settle(batch, self._answers(batch))
        self._schedule(loop)

    def _start_thread(self) -> None:
        if self._running is None and (batch := self._next_batch(self._expensive)):
            self._in_thread = batch
            self._running = asyncio.get_running_loop().create_task(self._answer_in_thread(batch))

    async def _answer_in_thread(self, batch: list[Waiting]) -> None:
        try:
            answers = await asyncio.get_running_loop().run_in_executor(self._thread, self._answers, batch)
        except BaseException as error:
            # Whatever happened to the thread, no request is left waiting.
            _settle(batch, [Refusal("internal", "the worker thread that had this question is gone")] * len(batch))
            if not isinstance(error, Exception):
                raise
        else:
            _settle(batch, answers)
        finally:
            self._running, self._in_thread = None, []
            self._start_thread()

    def _next_batch(self, queue: deque[Waiting]) -> list[Waiting]:
        """The oldest question and those of its kind behind it, up to a cost. Drops questions whose clients have gone."""
        batch: list[Waiting] = []
        later: deque[Waiting] = deque()
        cost, kind = 0, None
        while queue:
            waiting = queue.popleft()
            question = waiting.question
            if waiting.answer.done():
                continue
            if not batch:
                kind = question.kind
            elif question.kind != kind or cost + question.cost > self._settings.batch_cost:
                later.append(waiting)
                continue
            batch.append(waiting)
            cost += question.cost
            if kind is None:
                break
        queue.extendleft(reversed(later))
        return batch

    def _answers(self, batch: Sequence[Waiting]) -> list[Outcome | Exception]:
        """One result or error per question. When a batch fails, each question is answered alone, so that it fails alone."""
        questions: list[Any] = [waiting.question for waiting in batch]
        try:
            outcome = questions[0].answer(questions, self._settings.max_recompute, self._metrics)
        except Exception as error:  # handed to the request it belongs to
            return [error] if len(batch) == 1 else [self._answers([waiting])[0] for waiting in batch]
        return list(outcome.parts([len(question) for question in questions]))


def _settle(batch: Sequence[Waiting], answers: Sequence[Outcome | Exception]) -> None:
    for waiting, answer in zip(batch, answers, strict=True):
        if waiting.answer.done():
            continue  # its client has gone
        if isinstance(answer, Exception):
            waiting.answer.set_exception(answer)
        else:
            waiting.answer.set_result(answer)
