"""New nodes of requests that come at the same time are answered together.

A batch is what has arrived when the event loop comes round: nobody waits for company, and under load there is some. Cheap
batches are answered on the spot, which costs less than a hop to a thread and back; others go to the one worker thread.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from service.errors import Refusal
from service.loaded import LoadedModel
from service.metrics import Metrics
from service.outcome import Outcome
from service.settings import Settings
from sgformer import NewNodes, SparseRows
from sgformer.extension import Mode

Gone = Callable[[], Coroutine[Any, Any, None]]
"""Returns when the caller has hung up."""


@dataclass(frozen=True, eq=False)  # a question is itself and no other: comparing arrays would not tell
class Waiting:
    loaded: LoadedModel
    new: NewNodes
    mode: Mode
    answer: asyncio.Future[Outcome]
    cost: int

    @property
    def kind(self) -> tuple[int, Mode, bool]:
        """What questions must share to be asked together."""
        return id(self.loaded), self.mode, isinstance(self.new.features, SparseRows)

    @property
    def foreseen(self) -> bool:
        """Whether its cost is known: from five layers on an exact answer walks further than `cost_of` looks."""
        return self.mode == "frozen" or self.loaded.config.layers < 5


class Batcher:
    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings, self._metrics = settings, metrics
        self._waiting: deque[Waiting] = deque()
        self._scheduled = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="answers")
        self._running: set[asyncio.Task[None]] = set()

    async def ask(self, loaded: LoadedModel, new: NewNodes, mode: Mode, gone: Gone) -> Outcome:
        """Raises what `sgformer.extend` raises for this question, and Refusal where it takes too long."""
        loop = asyncio.get_running_loop()
        question = Waiting(loaded, new, mode, loop.create_future(), cost_of(loaded, new, mode))
        limit = self._settings.max_recompute
        if mode == "exact" and question.cost > limit:
            told = f"exact answers to this request would walk over {question.cost:,} links, the limit is {limit:,}"
            told += "; ask for fewer at once, or with mode frozen"
            raise Refusal("neighborhood_too_large", told, size=question.cost, limit=limit)
        self._waiting.append(question)
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._flush)
        # Listening for a hang-up costs a task: worth it only where there will be time to hang up.
        watcher = loop.create_task(gone()) if self._running or not self._is_cheap([question]) else None
        if watcher is not None:
            watcher.add_done_callback(lambda _: question.answer.cancel())
        try:
            async with asyncio.timeout(self._settings.deadline_seconds):
                return await question.answer
        except TimeoutError:
            self._metrics.shed.labels("deadline").inc()
            raise Refusal("deadline", f"no answer within {self._settings.deadline_seconds:g} s") from None
        except asyncio.CancelledError:
            if watcher is None or not watcher.done():
                raise
            self._metrics.shed.labels("gone").inc()
            raise Refusal("gone", "the caller hung up") from None  # who never hears it; the log and the metrics do
        finally:
            if watcher is not None:
                watcher.cancel()
            if not question.answer.done() or question.answer.cancelled():
                with suppress(ValueError):
                    self._waiting.remove(question)  # nobody waits for it: it shall not hold its version

    async def close(self) -> None:
        if self._running:
            await asyncio.wait(self._running, timeout=self._settings.deadline_seconds)
        self._thread.shutdown(wait=False, cancel_futures=True)
        for question in self._waiting:
            if not question.answer.done():
                question.answer.set_exception(Refusal("not_ready", "the service is shutting down"))

    def _flush(self) -> None:
        self._scheduled = False
        if self._running:  # the thread is busy: what has come meanwhile goes next, all together
            return
        batch = self._next_batch()
        if not batch:
            return
        if self._is_cheap(batch):
            _settle(batch, self._answers(batch))
            self._again()
        else:
            task = asyncio.get_running_loop().create_task(self._in_thread(batch))
            self._running.add(task)
            task.add_done_callback(self._finished)

    def _is_cheap(self, batch: Sequence[Waiting]) -> bool:
        cost = sum(question.cost for question in batch)
        return cost <= self._settings.inline_cost and all(question.foreseen for question in batch)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._again()

    def _again(self) -> None:
        if self._waiting and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    async def _in_thread(self, batch: list[Waiting]) -> None:
        try:
            answers = await asyncio.get_running_loop().run_in_executor(self._thread, self._answers, batch)
        except BaseException as error:
            # Whatever became of the thread, nobody is left waiting.
            _settle(batch, [Refusal("internal", "the worker that had this question is gone")] * len(batch))
            if not isinstance(error, Exception):
                raise
        else:
            _settle(batch, answers)

    def _next_batch(self) -> list[Waiting]:
        """The oldest question, and those of its kind behind it, up to a cost. Callers that have gone are skipped."""
        while self._waiting and self._waiting[0].answer.done():
            self._waiting.popleft()
        if not self._waiting:
            return []
        first = self._waiting.popleft()
        batch, cost = [first], first.cost
        later: deque[Waiting] = deque()
        while self._waiting and first.loaded.merges:
            question = self._waiting.popleft()
            if question.answer.done():
                continue
            if question.kind == first.kind and cost + question.cost <= self._settings.batch_cost:
                batch.append(question)
                cost += question.cost
            else:
                later.append(question)
        self._waiting.extendleft(reversed(later))
        return batch

    def _answers(self, batch: Sequence[Waiting]) -> list[Outcome | Exception]:
        """One result or error per question: a question that fails is asked again alone, so that it fails alone."""
        first, start = batch[0], time.perf_counter()
        try:
            merged = first.new if len(batch) == 1 else NewNodes.merged([question.new for question in batch])
            found = first.loaded.engine.extended(merged, first.mode, self._settings.max_recompute)
        except Exception as error:  # handed to the caller it belongs to
            return [error] if len(batch) == 1 else [self._answers([question])[0] for question in batch]
        self._metrics.batch_nodes.observe(len(merged))
        for count in found.recomputed.tolist():
            self._metrics.recomputed.observe(count)
        outcome = Outcome.of(found, first.loaded.config.task, start, found.exactness)
        return list(outcome.parts([len(question.new) for question in batch]))


def cost_of(loaded: LoadedModel, new: NewNodes, mode: Mode) -> int:
    """Nodes and neighbours; and from three layers on, where an exact answer walks over them, the neighbours' neighbours."""
    cost = len(new) + len(new.neighbors)
    if mode == "exact" and loaded.config.layers > 2 and len(new.neighbors):
        cost += int(loaded.snapshot.adjacency.degrees(new.neighbors).sum())
    return cost


def _settle(batch: Sequence[Waiting], answers: Sequence[Outcome | Exception]) -> None:
    for question, answer in zip(batch, answers, strict=True):
        if question.answer.done():
            continue  # its caller has gone
        if isinstance(answer, Exception):
            question.answer.set_exception(answer)
        else:
            question.answer.set_result(answer)
