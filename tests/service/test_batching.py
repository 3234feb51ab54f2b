"""Concurrent questions: batched, alone in their answers and alone in their failures; too many are told to come back."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from model_store import Snapshot
from service.admission import Admission
from service.batching import Batcher
from service.engine import NumpyEngine
from service.errors import Refusal
from service.heartbeat import Heartbeat
from service.known import KnownNodes
from service.loaded import LoadedModel
from service.metrics import Metrics
from service.outcome import Outcome
from service.settings import Settings
from sgformer import Answers, ExtendedAnswers, NeighborhoodTooLarge, NewNodes
from tests.service.serving import in_thread, refused, until


class Watched(NumpyEngine):
    """The real engine, that tells which batches it got and can be held up or broken."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        self.batches: list[int] = []
        self.go = threading.Event()
        self.go.set()
        self.broken = False
        self.fails_at: int | None = None
        """A neighbour for whose sake a batch fails."""

    def known(self, rows: NDArray[np.int64]) -> Answers:
        self.batches.append(len(rows))
        if self.broken:
            raise MemoryError("no memory")
        return super().known(rows)

    def extended(self, new: NewNodes, mode: Any = "exact", max_recompute: int | None = None) -> ExtendedAnswers:
        self.batches.append(len(new))
        self.go.wait(10)
        if self.fails_at in new.neighbors.tolist():
            raise NeighborhoodTooLarge(0, 9, 1)
        if self.broken:
            raise MemoryError("no memory")
        return super().extended(new, mode, max_recompute)


@pytest.fixture
def engine(snapshot: Snapshot) -> Watched:
    return Watched(snapshot)


@pytest.fixture
def loaded(snapshot: Snapshot, engine: Watched) -> LoadedModel:
    return LoadedModel(1, snapshot, engine, {})


def new(seed: int, neighbors: list[int], count: int = 1) -> NewNodes:
    rows = np.random.default_rng(seed).normal(size=(count, 5))
    return NewNodes.build(rows, [neighbors] * count, num_nodes=60, num_features=5)


async def never() -> None:
    await asyncio.Event().wait()


def run(settings: Settings, work: Callable[[Batcher], Coroutine[Any, Any, Any]]) -> Any:
    async def main() -> Any:
        batcher = Batcher(settings, Metrics())
        try:
            return await work(batcher)
        finally:
            await batcher.close()

    return asyncio.run(main())


@pytest.mark.parametrize("inline_cost", [0, 10_000])
def test_questions_that_come_together_are_answered_together_and_have_the_bits_of_alone(
    snapshot: Snapshot, loaded: LoadedModel, engine: Watched, inline_cost: int
) -> None:
    questions = [new(seed, [seed, seed + 1], 1 + seed % 3) for seed in range(12)]

    async def all_at_once(batcher: Batcher) -> list[Outcome]:
        return await asyncio.gather(*(batcher.ask(loaded, one, "exact", never) for one in questions))

    answers = run(Settings(inline_cost=inline_cost), all_at_once)
    assert engine.batches == [sum(len(one) for one in questions)]
    for question, answer in zip(questions, answers, strict=True):
        alone = snapshot.extended(question)
        np.testing.assert_array_equal(answer.logits, alone.logits)
        np.testing.assert_array_equal(answer.embeddings, alone.embeddings)


def test_a_batch_is_filled_by_cost(loaded: LoadedModel, engine: Watched) -> None:
    async def all_at_once(batcher: Batcher) -> Any:
        return await asyncio.gather(*(batcher.ask(loaded, new(seed, [1, 2, 3, 4]), "frozen", never) for seed in range(10)))

    run(Settings(batch_cost=15), all_at_once)  # each costs 5
    assert engine.batches == [3, 3, 3, 1]


def test_one_bad_question_fails_alone(loaded: LoadedModel, engine: Watched) -> None:
    engine.fails_at = 0

    async def all_at_once(batcher: Batcher) -> Any:
        hub = batcher.ask(loaded, new(0, [0]), "exact", never)
        others = [batcher.ask(loaded, new(seed, [59]), "exact", never) for seed in (1, 2)]
        return await asyncio.gather(hub, *others, return_exceptions=True)

    answers = run(Settings(), all_at_once)
    assert isinstance(answers[0], NeighborhoodTooLarge)
    assert all(isinstance(one, Outcome) for one in answers[1:])
    assert engine.batches == [3, 1, 1, 1]  # together, then each alone


def test_a_question_that_walks_over_too_much_is_refused_before_it_is_asked(loaded: LoadedModel, engine: Watched) -> None:
    """Three layers walk over the neighbours' neighbours: a hub asked for many times is many walks."""

    async def work(batcher: Batcher) -> Any:
        return await batcher.ask(loaded, new(0, [0], 10), "exact", never)

    with pytest.raises(Refusal) as caught:
        run(Settings(max_recompute=100), work)
    assert caught.value.code == "neighborhood_too_large"
    assert engine.batches == []


@pytest.mark.parametrize("inline_cost", [0, 10_000])
def test_everybody_gets_an_answer_when_the_engine_breaks(loaded: LoadedModel, engine: Watched, inline_cost: int) -> None:
    engine.broken = True

    async def all_at_once(batcher: Batcher) -> Any:
        asked = [batcher.ask(loaded, new(seed, [1]), "exact", never) for seed in range(3)]
        return await asyncio.gather(*asked, return_exceptions=True)

    assert [type(one) for one in run(Settings(inline_cost=inline_cost), all_at_once)] == [MemoryError] * 3


def test_a_deadline_ends_the_wait_and_callers_that_have_gone_are_skipped(loaded: LoadedModel, engine: Watched) -> None:
    engine.go.clear()

    async def slow(batcher: Batcher) -> Any:
        first = asyncio.create_task(batcher.ask(loaded, new(0, [1]), "exact", never))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(batcher.ask(loaded, new(1, [1]), "exact", never))
        results = await asyncio.gather(first, second, return_exceptions=True)
        engine.go.set()
        return [*results, await batcher.ask(loaded, new(2, [1]), "exact", never)]

    first, second, third = run(Settings(inline_cost=0, deadline_seconds=0.2), slow)
    assert [type(one) for one in (first, second)] == [Refusal, Refusal]
    assert first.code == "deadline"
    assert isinstance(third, Outcome)
    assert engine.batches == [1, 1]  # the second question was never asked: its caller had given up


def test_a_caller_that_hangs_up_is_let_go(loaded: LoadedModel, engine: Watched) -> None:
    engine.go.clear()

    async def hung_up() -> None:
        await asyncio.sleep(0.05)

    async def work(batcher: Batcher) -> Any:
        try:
            return await batcher.ask(loaded, new(0, [1]), "exact", hung_up)
        except Refusal as refusal:
            return str(refusal)
        finally:
            engine.go.set()

    assert run(Settings(inline_cost=0), work) == "the caller hung up"


def test_known_nodes_that_are_asked_for_together_are_answered_together(
    snapshot: Snapshot, loaded: LoadedModel, engine: Watched
) -> None:
    other = LoadedModel(2, snapshot, Watched(snapshot), {})
    asked = [np.array(rows) for rows in ([3], [4, 5, 3], [59, 0])]

    async def all_at_once() -> list[Answers]:
        known = KnownNodes()
        return await asyncio.gather(*(known.ask(loaded, rows, True) for rows in asked), known.ask(other, asked[0], True))

    answers = asyncio.run(all_at_once())
    assert engine.batches == [6]  # the other version was asked on its own
    for rows, answer in zip([*asked, asked[0]], answers, strict=True):
        alone = snapshot.known(rows)
        np.testing.assert_array_equal(answer.logits, alone.logits)
        np.testing.assert_array_equal(answer.embeddings, alone.embeddings)


def test_logits_of_known_nodes_are_read_and_only_embeddings_computed(
    snapshot: Snapshot, loaded: LoadedModel, engine: Watched
) -> None:
    rows = np.array([4, 5, 3])

    async def both() -> list[Outcome]:
        known = KnownNodes()
        return await asyncio.gather(known.ask(loaded, rows, embeddings=False), known.ask(loaded, rows[:1], embeddings=True))

    without, with_embeddings = asyncio.run(both())
    assert engine.batches == [1]  # whoever wants no embeddings waits for nobody's
    assert without.embeddings.shape == (3, 0)
    np.testing.assert_array_equal(without.logits, snapshot.known_logits(rows))
    np.testing.assert_array_equal(with_embeddings.logits, without.logits[:1])


def test_everybody_who_asked_for_known_nodes_hears_that_the_engine_broke(loaded: LoadedModel, engine: Watched) -> None:
    engine.broken = True

    async def all_at_once() -> list[Any]:
        known = KnownNodes()
        asked = (known.ask(loaded, np.array([row]), embeddings=True) for row in range(3))
        return await asyncio.gather(*asked, return_exceptions=True)

    assert [type(one) for one in asyncio.run(all_at_once())] == [MemoryError] * 3


def test_too_many_at_once_are_told_to_come_back() -> None:
    admission = Admission(Settings(max_inflight=2), Metrics())
    with admission.answering:
        with admission.answering, pytest.raises(Refusal) as caught, admission.answering:
            pass
        assert (caught.value.status, caught.value.headers) == (429, {"retry-after": "1"})
        with admission.answering:
            pass


def test_bodies_that_trickle_in_take_no_place_but_are_not_without_number() -> None:
    admission = Admission(Settings(max_inflight=1), Metrics())

    async def trickle(done: asyncio.Event) -> None:
        with admission.receiving:
            await done.wait()

    async def main() -> None:
        done = asyncio.Event()
        slow = [asyncio.create_task(trickle(done)) for _ in range(4)]
        await asyncio.sleep(0)
        with admission.answering:
            pass
        with pytest.raises(Refusal), admission.receiving:
            pass
        done.set()
        await asyncio.gather(*slow)
        with admission.receiving:
            pass

    asyncio.run(main())


def test_a_body_that_does_not_come_is_given_up_and_another_cancellation_is_not_mistaken_for_that() -> None:
    admission = Admission(Settings(body_seconds=0.05), Metrics())

    async def trickle() -> None:
        with admission.receiving:
            await asyncio.sleep(60)

    async def main() -> None:
        old, cancelled = asyncio.create_task(trickle()), asyncio.create_task(trickle())
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.sleep(0.06)
        young = asyncio.create_task(trickle())
        await asyncio.sleep(0)
        for _ in range(2):  # the second look finds it given up already
            admission.beat()
        results = await asyncio.gather(old, cancelled, asyncio.wait_for(young, 0.01), return_exceptions=True)
        assert isinstance(results[0], Refusal)
        assert results[0].status == 408
        assert [type(one) for one in results[1:]] == [asyncio.CancelledError, TimeoutError]

    asyncio.run(main())


def test_while_a_crowd_waits_for_long_a_worker_takes_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    admission = Admission(Settings(max_lag_seconds=0.005, max_inflight=64, late_inflight=8), Metrics())
    now = 100.0
    monkeypatch.setattr("service.admission.time.monotonic", lambda: now)

    def taken(crowd: int, seconds: float = 0.0) -> int:
        """How many of a crowd, all of whom come at once and are answered after a time."""
        nonlocal now
        count = 0
        with ExitStack() as inside, suppress(Refusal):
            for _ in range(crowd):
                inside.enter_context(admission.answering)
                count += 1
            now += seconds
        admission.beat()
        return count

    assert [taken(64, 0.02) for _ in range(4)] == [64] * 4
    assert taken(64, 0.001) == 64  # a hiccup, and they are quick again
    assert [taken(16, 0.02) for _ in range(9)] == [16] * 9  # slow, but no crowd
    assert [taken(64, 0.02) for _ in range(6)] == [64] * 5 + [8]
    for _ in range(5):  # it comes again and again: quickly answered now, because fewer are taken
        assert taken(64, 0.002) == 8
        now += 0.5
    now += 1.1
    admission.beat()
    assert taken(64) == 64


def test_the_heart_beats_while_the_event_loop_comes_round_and_stops_when_told() -> None:
    beats: list[float] = []

    async def main() -> None:
        heartbeat = Heartbeat(lambda: beats.append(time.monotonic()))
        heartbeat.start()
        await asyncio.sleep(0.1)
        heartbeat.stop()
        told = len(beats)
        assert told >= 2
        await asyncio.sleep(0.05)
        assert len(beats) == told

    asyncio.run(main())


def test_answers_under_load_have_the_bytes_of_answers_alone(store: Path) -> None:
    """Through HTTP, eight callers at once, no cache: byte for byte."""
    rng = np.random.default_rng(0)
    questions = [
        {"new_nodes": [{"id": 1, "features": rng.normal(size=5).tolist(), "neighbors": rng.integers(0, 60, 4).tolist()}]}
        for _ in range(40)
    ]
    with in_thread(store, cache_bytes=0) as client:
        alone = [client.post("/predict", json=one).content for one in questions]
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(lambda one: client.post("/predict", json=one).content, questions * 5))
        assert together == alone * 5


def test_a_full_service_refuses_at_once_and_recovers(store: Path) -> None:
    with in_thread(store, max_inflight=1, body_seconds=30.0) as client:
        with ExitStack() as opened:
            for _ in range(4):
                slow = opened.enter_context(socket.create_connection(("127.0.0.1", client.base_url.port)))
                slow.sendall(b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")

            def shed() -> bool:
                return client.post("/predict", json={"nodes": [1]}).status_code == 429

            until(shed)
            response = client.post("/predict", json={"nodes": [1]})
            refused(response, 429, "overloaded")
            assert response.headers["retry-after"] == "1"
            assert client.get("/health/live").status_code == 200
        until(lambda: client.post("/predict", json={"nodes": [1]}).status_code == 200)
