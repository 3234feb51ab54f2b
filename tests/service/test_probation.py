"""A version that fails soon after it went live is left by itself, once, and never in circles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from model_store import ModelVersions, Store
from service.batching import Batcher
from service.errors import Refusal
from service.loaded import load
from service.metrics import Metrics
from service.probation import Probation
from service.settings import Settings
from tests.model_store.samples import publish
from tests.service.serving import in_thread, until


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Two versions of `demo`, the first one live."""
    publish(Store(tmp_path), seed=1, activate=True)
    publish(Store(tmp_path), seed=2)
    return tmp_path


@pytest.fixture
def bad_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 2 passes its probes and then fails in service."""
    ask = Batcher.ask

    async def fails(self: Batcher, question: Any, caller: Any) -> Any:
        if question.loaded.version == 2:
            raise RuntimeError("as if a library had a fault")
        return await ask(self, question, caller)

    monkeypatch.setattr(Batcher, "ask", fails)


def history(root: Path) -> list[tuple[str, int]]:
    return [(event.action, event.version) for event in Store(root).model("demo").history().events]


def serving(client: httpx.Client) -> int:
    found: int = client.get("/health/ready").json()["version"]
    return found


@pytest.mark.usefixtures("bad_answers")
def test_a_version_whose_answers_fail_is_left(two: Path) -> None:
    versions = Store(two).model("demo")
    with in_thread(two, probation_answers=5) as client:
        until(lambda: client.get("/models").json()["probation"] == 1)
        versions.activate(2)
        until(lambda: client.get("/models").json()["probation"] == 2)
        wrong = [client.post("/predict", json={"nodes": [10**6]}).status_code for _ in range(30)]
        statuses = [client.post("/predict", json={"nodes": [1]}).status_code for _ in range(5)]
        assert wrong + statuses == [404] * 30 + [500] * 5
        until(lambda: serving(client) == 1)
        assert client.post("/predict", json={"nodes": [1]}).status_code == 200
        told = client.get("/models").json()
        assert (told["rolled_back"]["from"], told["rolled_back"]["to"], told["probation"]) == (2, 1, None)
        assert told["rolled_back"]["why"] == "5 of its first 5 answers here failed"
        assert 'sgf_model_swaps_total{result="rolled_back"} 1.0' in client.get("/metrics").text
    assert history(two) == [("activate", 1), ("activate", 2), ("rollback", 1)]


def test_callers_who_hang_up_and_crowds_say_nothing_about_a_version(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Batcher.ask

    async def refuses(self: Batcher, question: Any, caller: Any) -> Any:
        if question.loaded.version == 2:
            raise Refusal("deadline", "no answer in time")
        return await ask(self, question, caller)

    monkeypatch.setattr(Batcher, "ask", refuses)
    Store(two).model("demo").activate(2)
    looked_twice = looks(two, monkeypatch)
    with in_thread(two, probation_answers=5) as client:
        statuses = {client.post("/predict", json={"nodes": [1]}).status_code for _ in range(20)}
        looked_twice(1)
        assert statuses == {503}
        assert client.get("/models").json()["probation"] == 2
    assert history(two)[-1] == ("activate", 2)


def test_a_version_that_somebody_rolled_back_to_is_not_judged(two: Path) -> None:
    """It was on probation, and in service all the while: this worker never saw the other one."""
    versions, settings = Store(two).model("demo"), Settings(store=two, probation_answers=1)
    probation = Probation(settings, Metrics())
    probation.begin(versions, 1)
    assert probation.watched == 1
    versions.activate(2)
    versions.rollback()
    probation.answered(failed=True)
    probation.look(versions)
    assert (probation.watched, versions.live()) == (None, 1)


def looks(store: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Waits until so many workers have looked after their version twice: the second look began after the call."""
    look, looked = Probation.look, Counter[int]()

    def counted(self: Probation, versions: ModelVersions) -> None:
        look(self, versions)
        looked[id(self)] += versions.folder.is_relative_to(store)

    def looked_twice(workers: int) -> None:
        looked.clear()
        until(lambda: sum(times >= 2 for times in list(looked.values())) == workers)

    monkeypatch.setattr(Probation, "look", counted)
    return looked_twice


@pytest.mark.usefixtures("bad_answers")
def test_few_failures_and_old_versions_and_a_switch_that_is_off_change_nothing(
    two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_twice = looks(two, monkeypatch)
    versions = Store(two).model("demo")
    versions.activate(2)
    ask: dict[str, Any] = {"json": {"nodes": [1]}}
    with in_thread(two, probation_answers=6) as client:
        for _ in range(5):
            assert client.post("/predict", **ask).status_code == 500
        with in_thread(two, auto_rollback=False, probation_answers=1) as other:
            for _ in range(10):
                assert other.post("/predict", **ask).status_code == 500
            looked_twice(2)
        with in_thread(two, probation_seconds=0.01, probation_answers=1) as other:
            for _ in range(10):
                assert other.post("/predict", **ask).status_code == 500
            looked_twice(2)
        assert versions.live() == 2
        assert client.get("/models").json()["probation"] == 2


def test_a_version_that_workers_cannot_take_is_left_by_one_of_them(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = Store(two).model("demo")

    def fails(found: Any, version: int, settings: Any) -> Any:
        if version == 2:
            raise MemoryError
        return load(found, version, settings)

    monkeypatch.setattr("service.rollout.load", fails)
    with in_thread(two) as first, in_thread(two) as second:
        versions.activate(2)
        until(lambda: versions.live() == 1)
        until(lambda: all(client.get("/models").json()["failure"] is None for client in (first, second)))
        assert (serving(first), serving(second)) == (1, 1)
        told = [client.get("/models").json()["rolled_back"] for client in (first, second)]
        assert told[0] == told[1], "every worker tells it, whoever did it"
        assert (told[0]["from"], told[0]["to"]) == (2, 1)
        assert told[0]["why"] == "it could not be taken into service: MemoryError; the log has the details"
        versions.activate(2)
        until(lambda: versions.live() == 1)
    assert history(two)[-4:] == [("activate", 2), ("rollback", 1), ("activate", 2), ("rollback", 1)]
