"""Concurrent questions: batched, alone in their answers and alone in their failures."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from model_store import Snapshot, Store
from service.admission import Slot
from service.engines.engine import NumpyEngine
from service.engines.served_model import ServedModel
from service.engines.torch_engine import TorchEngine
from service.errors import Refusal
from service.predict.batching import Batcher
from service.predict.results import NodeResults
from service.predict.rows import KnownRows, NewRows
from service.settings import Settings
from service.telemetry.metrics import Metrics
from sgformer import Answers, ExtendedAnswers, NeighborhoodTooLarge, NewNodes
from sgformer.request_time.extension import Mode
from tests.service.serving import in_thread, until


class Watched(NumpyEngine):
    """The real engine, in a thread where the question is expensive. It notes its batches, and can be held up or broken."""

    backend = None

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
def model(snapshot: Snapshot, engine: Watched) -> ServedModel:
    return ServedModel(1, snapshot, engine, {})


def new(seed: int, neighbors: list[int], count: int = 1) -> NewNodes:
    rows = np.random.default_rng(seed).normal(size=(count, 5))
    return NewNodes.build(rows, [neighbors] * count, num_nodes=60, num_features=5)


class Caller:
    """A client that stays."""

    slot = Slot(None)

    @property
    def connection(self) -> Any:
        return SimpleNamespace(loop=asyncio.get_running_loop())

    async def gone(self) -> None:
        await asyncio.Event().wait()


CALLER, LIMIT = Caller(), 200_000


async def ask(batcher: Batcher, model: ServedModel, question: NewNodes, mode: Mode = "exact") -> NodeResults:
    return await batcher.compute(model, NewRows.of(model, question, mode, LIMIT), CALLER)


def run(settings: Settings, work: Callable[[Batcher], Coroutine[Any, Any, Any]], metrics: Metrics | None = None) -> Any:
    async def main() -> Any:
        batcher = Batcher(settings, metrics or Metrics())
        try:
            return await work(batcher)
        finally:
            await batcher.close()

    return asyncio.run(main())


@pytest.mark.parametrize("inline_cost", [0, 10_000])
def test_questions_that_come_together_are_answered_together_and_have_the_bits_of_alone(
    snapshot: Snapshot, model: ServedModel, engine: Watched, inline_cost: int
) -> None:
    questions = [new(seed, [seed, seed + 1], 1 + seed % 3) for seed in range(12)]

    async def all_at_once(batcher: Batcher) -> list[NodeResults]:
        return await asyncio.gather(*(ask(batcher, model, one) for one in questions))

    answers = run(Settings(inline_cost=inline_cost), all_at_once)
    assert engine.batches == [sum(len(one) for one in questions)]
    for question, answer in zip(questions, answers, strict=True):
        alone = snapshot.extended(question)
        np.testing.assert_array_equal(answer.logits, alone.logits)
        np.testing.assert_array_equal(answer.embeddings, alone.embeddings)


def test_a_batch_is_filled_by_cost(model: ServedModel, engine: Watched) -> None:
    async def all_at_once(batcher: Batcher) -> Any:
        return await asyncio.gather(*(ask(batcher, model, new(seed, [1, 2, 3, 4]), "frozen") for seed in range(10)))

    run(Settings(batch_cost=15), all_at_once)  # each costs 5
    assert engine.batches == [3, 3, 3, 1]


def test_an_engine_whose_bits_depend_on_company_is_asked_one_question_at_a_time(model: ServedModel, engine: Watched) -> None:
    assert TorchEngine.batch_invariant is False
    model.batch_invariant = TorchEngine.batch_invariant

    async def all_at_once(batcher: Batcher) -> Any:
        return await asyncio.gather(*(ask(batcher, model, new(seed, [1])) for seed in range(3)))

    run(Settings(), all_at_once)
    assert engine.batches == [1, 1, 1]


@pytest.mark.parametrize(("layers", "mode", "where"), [(3, "exact", "here"), (4, "exact", "thread"), (4, "frozen", "here")])
def test_what_cannot_be_foreseen_is_not_done_on_the_event_loop(
    model: ServedModel, engine: Watched, layers: int, mode: Mode, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From four layers on an exact answer walks two hops: a neighbour with few neighbours may have a hub among them."""
    model.config = dataclasses.replace(model.config, layers=layers)
    threads: list[threading.Thread] = []
    extended = engine.extended

    def noted(*arguments: Any) -> ExtendedAnswers:
        threads.append(threading.current_thread())
        return extended(*arguments)

    monkeypatch.setattr(engine, "extended", noted)
    run(Settings(), lambda batcher: ask(batcher, model, new(0, [1]), mode))
    assert [one is threading.main_thread() for one in threads] == [where == "here"]


def test_one_bad_question_fails_alone(model: ServedModel, engine: Watched) -> None:
    engine.fails_at = 0

    async def all_at_once(batcher: Batcher) -> Any:
        hub = ask(batcher, model, new(0, [0]))
        others = [ask(batcher, model, new(seed, [59])) for seed in (1, 2)]
        return await asyncio.gather(hub, *others, return_exceptions=True)

    answers = run(Settings(), all_at_once)
    assert isinstance(answers[0], NeighborhoodTooLarge)
    assert all(isinstance(one, NodeResults) for one in answers[1:])
    assert engine.batches == [3, 1, 1, 1]  # together, then each alone


def test_a_question_that_walks_over_too_much_is_refused_before_it_is_asked(model: ServedModel, engine: Watched) -> None:
    """Three layers read the neighbours' neighbours: each request for a hub reads them again."""
    with pytest.raises(Refusal, match=r"10 new node\(s\) read .*; send fewer new nodes") as caught:
        NewRows.of(model, new(0, [0], 10), "exact", 100)
    assert (caught.value.code, caught.value.details["limit"]) == ("neighborhood_too_large", 100)
    with pytest.raises(Refusal, match=r"; use mode frozen$"):
        NewRows.of(model, new(0, [0]), "exact", 3)
    assert NewRows.of(model, new(0, [0], 10), "frozen", 100).cost > 0
    assert engine.batches == []


@pytest.mark.parametrize("inline_cost", [0, 10_000])
def test_everybody_gets_an_answer_when_the_engine_breaks(model: ServedModel, engine: Watched, inline_cost: int) -> None:
    engine.broken = True

    async def all_at_once(batcher: Batcher) -> Any:
        asked = [ask(batcher, model, new(seed, [1])) for seed in range(3)]
        return await asyncio.gather(*asked, return_exceptions=True)

    assert [type(one) for one in run(Settings(inline_cost=inline_cost), all_at_once)] == [MemoryError] * 3


def test_a_deadline_ends_the_wait_and_callers_that_have_gone_are_skipped(model: ServedModel, engine: Watched) -> None:
    engine.go.clear()
    metrics = Metrics()

    async def slow(batcher: Batcher) -> Any:
        first = asyncio.create_task(ask(batcher, model, new(0, [1])))
        while not engine.batches:  # until the thread has it
            await asyncio.sleep(0.001)
        others = [asyncio.create_task(ask(batcher, model, new(seed, [1]))) for seed in (1, 2, 3)]
        results = await asyncio.gather(first, *others, return_exceptions=True)
        assert not batcher._expensive, "their clients have gone: they must not keep their version open"
        engine.go.set()
        return results

    results = run(Settings(inline_cost=0, deadline_seconds=0.1), slow, metrics)
    assert [one.code for one in results] == ["deadline"] * 4
    assert engine.batches == [1]  # the others were never asked: their callers had given up
    assert 'sgf_shed_total{reason="deadline"} 4.0' in metrics.page().decode()


def test_expensive_rows_are_computed_by_a_process_with_the_bits_of_this_one(snapshot: Snapshot) -> None:
    model = ServedModel(1, snapshot, NumpyEngine(snapshot), {})
    rows = np.arange(20)

    async def work(batcher: Batcher) -> list[Any]:
        known = batcher.compute(model, KnownRows(rows, embeddings=True), CALLER)
        asked = [ask(batcher, model, new(seed, [1, 2])) for seed in range(3)]
        results = await asyncio.gather(known, *asked)
        expensive = NewRows.of(model, new(0, [0], 10), "exact", LIMIT)
        with pytest.raises(NeighborhoodTooLarge) as caught:
            await batcher.compute(model, dataclasses.replace(expensive, max_recompute=1), CALLER)
        assert (caught.value.limit, caught.value.item) == (1, 0), "an error arrives as it was raised"
        return results

    known, *others = run(Settings(inline_cost=0, deadline_seconds=30), work)
    np.testing.assert_array_equal(known.embeddings, snapshot.known(rows).embeddings)
    for seed, results in enumerate(others):
        np.testing.assert_array_equal(results.logits, snapshot.extended(new(seed, [1, 2])).logits)


def test_a_compute_process_that_is_killed_is_replaced_and_a_batch_that_kills_two_is_refused(snapshot: Snapshot) -> None:
    model = ServedModel(1, snapshot, NumpyEngine(snapshot), {})

    async def work(batcher: Batcher) -> Any:
        first = await ask(batcher, model, new(0, [1]))
        process = batcher._process._process
        assert process is not None
        process.kill()
        second = await ask(batcher, model, new(0, [1]))
        np.testing.assert_array_equal(first.logits, second.logits)
        killer = asyncio.create_task(kill_all(batcher))
        try:
            return await batcher.compute(model, KnownRows(np.zeros(3_000_000, dtype=np.int64), embeddings=True), CALLER)
        except Refusal as refusal:
            return refusal
        finally:
            killer.cancel()

    async def kill_all(batcher: Batcher) -> None:
        while True:
            await asyncio.sleep(0.01)
            if (process := batcher._process._process) is not None:
                process.kill()

    refusal = run(Settings(inline_cost=0, deadline_seconds=60.0), work)
    assert refusal.code == "internal"
    assert "was killed, twice" in str(refusal)


def test_a_caller_that_hangs_up_is_let_go(model: ServedModel, engine: Watched) -> None:
    engine.go.clear()

    class HungUp(Caller):
        async def gone(self) -> None:
            await asyncio.sleep(0.05)

    async def work(batcher: Batcher) -> Any:
        try:
            return await batcher.compute(model, NewRows.of(model, new(0, [1]), "exact", LIMIT), HungUp())
        except Refusal as refusal:
            return str(refusal)
        finally:
            engine.go.set()

    metrics = Metrics()
    assert run(Settings(inline_cost=0, deadline_seconds=60.0), work, metrics) == "the client closed the connection"
    assert 'sgf_shed_total{reason="gone"} 1.0' in metrics.page().decode()


def test_a_connection_that_ends_takes_its_question_along(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through HTTP: the engine is held up, the caller hangs up, and nobody goes on waiting for him."""
    go, extended = threading.Event(), NumpyEngine.extended

    def held_up(*arguments: Any) -> ExtendedAnswers:
        go.wait(60)
        return extended(*arguments)

    with in_thread(store, inline_cost=0, cache_bytes=0) as client:
        monkeypatch.setattr(NumpyEngine, "backend", None)  # in a thread, where it can be held up
        monkeypatch.setattr(NumpyEngine, "extended", held_up)
        body = b'{"new_nodes": [{"id": 1, "features": [1, 2, 3, 4, 5], "neighbors": [1]}]}'
        try:
            with socket.create_connection(("127.0.0.1", client.base_url.port)) as caller:
                caller.sendall(b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
                until(lambda: "sgf_queue_depth 1.0" in client.get("/metrics").text)
            until(lambda: 'sgf_shed_total{reason="gone"} 1.0' in client.get("/metrics").text)
            until(lambda: "sgf_queue_depth 0.0" in client.get("/metrics").text)
        finally:
            go.set()


def test_metrics_tell_what_new_nodes_cost(store: Path) -> None:
    """Two neighbours, three layers: they are recomputed twice, and those around them once."""
    with in_thread(store, cache_bytes=0) as client, Store(store).model("demo").open() as opened:
        nodes = [{"id": one, "features": [1, 2, 3, 4, 5], "neighbors": [7, 9]} for one in range(3)]
        assert client.post("/predict", json={"new_nodes": nodes}).status_code == 200
        page = client.get("/metrics").text
        recomputed = opened.extended(new(0, [7, 9])).recomputed[0]
    assert "sgf_batch_nodes_count 1.0" in page
    assert "sgf_batch_nodes_sum 3.0" in page
    assert "sgf_recomputed_nodes_count 3.0" in page
    assert f"sgf_recomputed_nodes_sum {3.0 * recomputed}" in page
    for stage in ("parse", "queue", "compute", "encode"):
        assert f'sgf_stage_duration_seconds_count{{stage="{stage}"}} 1.0' in page


def test_known_nodes_that_are_asked_for_together_are_answered_together(
    snapshot: Snapshot, model: ServedModel, engine: Watched
) -> None:
    other = ServedModel(2, snapshot, Watched(snapshot), {})
    asked = [np.array(rows) for rows in ([3], [4, 5, 3], [59, 0])]

    async def all_at_once(batcher: Batcher) -> list[Answers]:
        questions = [*((model, KnownRows(rows, True)) for rows in asked), (other, KnownRows(asked[0], True))]
        return await asyncio.gather(*(batcher.compute(*question, CALLER) for question in questions))

    answers = run(Settings(), all_at_once)
    assert engine.batches == [6]  # the other version was asked on its own
    for rows, answer in zip([*asked, asked[0]], answers, strict=True):
        alone = snapshot.known(rows)
        np.testing.assert_array_equal(answer.logits, alone.logits)
        np.testing.assert_array_equal(answer.embeddings, alone.embeddings)


def test_logits_of_known_nodes_are_read_and_only_embeddings_computed(
    snapshot: Snapshot, model: ServedModel, engine: Watched
) -> None:
    rows = np.array([4, 5, 3])

    async def both(batcher: Batcher) -> list[NodeResults]:
        questions = KnownRows(rows, embeddings=False), KnownRows(rows[:1], embeddings=True)
        return await asyncio.gather(*(batcher.compute(model, question, CALLER) for question in questions))

    without, with_embeddings = run(Settings(), both)
    assert engine.batches == [1]  # whoever wants no embeddings waits for nobody's
    assert without.embeddings.shape == (3, 0)
    np.testing.assert_array_equal(without.logits, snapshot.known_logits(rows))
    np.testing.assert_array_equal(with_embeddings.logits, without.logits[:1])


def test_everybody_who_asked_for_known_nodes_hears_that_the_engine_broke(model: ServedModel, engine: Watched) -> None:
    engine.broken = True

    async def all_at_once(batcher: Batcher) -> list[Any]:
        asked = (batcher.compute(model, KnownRows(np.array([row]), embeddings=True), CALLER) for row in range(3))
        return await asyncio.gather(*asked, return_exceptions=True)

    assert [type(one) for one in run(Settings(), all_at_once)] == [MemoryError] * 3


@pytest.mark.parametrize("backend", ["numpy", "onnx", "torch"])
def test_answers_under_load_have_the_bytes_of_answers_alone(store: Path, backend: str) -> None:
    """Through HTTP, eight callers at once, no cache: byte for byte."""
    rng = np.random.default_rng(0)
    questions = [
        {"new_nodes": [{"id": 1, "features": rng.normal(size=5).tolist(), "neighbors": rng.integers(0, 60, 4).tolist()}]}
        for _ in range(40)
    ]
    with in_thread(store, cache_bytes=0, backend=backend) as client:
        alone = [client.post("/predict", json=one).content for one in questions]
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(lambda one: client.post("/predict", json=one).content, questions * 5))
        assert together == alone * 5
