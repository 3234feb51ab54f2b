"""A version that fails soon after it went live is left by itself, once, and never in circles."""

from __future__ import annotations

import errno
import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from model_store import HistoryEntry, ModelVersions, Store, StoreUnavailable
from model_store.versions.activation_log import ActivationLog
from service.engines.served_model import load
from service.errors import Refusal
from service.predict.batching import Batcher
from service.rollout.probation import Probation
from service.settings import Settings
from service.telemetry.metrics import Metrics
from tests.model_store.samples import publish, small_contents
from tests.model_store.versions.stopped import locked_by_a_stopped_process
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
    compute = Batcher.compute

    async def fails(self: Batcher, model: Any, rows: Any, request: Any) -> Any:
        if model.version == 2:
            raise RuntimeError("as if a library had a fault")
        return await compute(self, model, rows, request)

    monkeypatch.setattr(Batcher, "compute", fails)


def history(root: Path) -> list[tuple[str, int]]:
    return [(event.action, event.version) for event in Store(root).model("demo").history().entries]


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
    compute = Batcher.compute

    async def refuses(self: Batcher, model: Any, rows: Any, request: Any) -> Any:
        if model.version == 2:
            raise Refusal("deadline", "no answer in time")
        return await compute(self, model, rows, request)

    monkeypatch.setattr(Batcher, "compute", refuses)
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
    assert probation.version == 1
    versions.activate(2)
    versions.rollback()
    probation.record_answer(failed=True)
    probation.check(versions)
    assert (probation.version, versions.live()) == (None, 1)


def test_a_roll_back_that_finds_the_store_busy_is_tried_again(two: Path) -> None:
    versions = ModelVersions(two / "demo", lock_seconds=0.05)
    versions.activate(2)
    probation = Probation(Settings(store=two, probation_answers=1), Metrics())
    probation.begin(versions, 2)
    probation.record_answer(failed=True)
    with locked_by_a_stopped_process(two / "demo" / ".lock"):
        probation.check(versions)
        assert (probation.version, versions.live()) == (2, 2)
    probation.check(versions)
    assert (probation.version, versions.live()) == (None, 1)


def looks(store: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Waits until so many workers have looked after their version twice: the second look began after the call."""
    look, looked = Probation.check, Counter[int]()

    def counted(self: Probation, versions: ModelVersions) -> None:
        look(self, versions)
        looked[id(self)] += versions.folder.is_relative_to(store)

    def looked_twice(workers: int) -> None:
        looked.clear()
        until(lambda: sum(times >= 2 for times in list(looked.values())) == workers)

    monkeypatch.setattr(Probation, "check", counted)
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


def go_live_damaged(root: Path, version: int) -> None:
    """As if a version had been damaged on the disk right after it went live."""
    states = root / "demo" / str(version) / "states" / "inputs.npy"
    content = bytearray(states.read_bytes())
    content[-1] ^= 1
    states.write_bytes(content)
    log = ActivationLog(root / "demo")
    log.append(log.history(), HistoryEntry("activate", version, datetime.now(UTC).isoformat()))


def test_a_version_that_is_proven_wrong_is_left_by_one_worker_of_several(two: Path) -> None:
    versions = Store(two).model("demo")
    with in_thread(two) as first, in_thread(two) as second:
        go_live_damaged(two, 2)
        until(lambda: versions.live() == 1)
        until(lambda: all(client.get("/models").json()["failure"] is None for client in (first, second)))
        assert (serving(first), serving(second)) == (1, 1)
        reports = [client.get("/models").json()["rolled_back"] for client in (first, second)]
        assert reports[0] == reports[1], "every worker reports it"
        assert (reports[0]["from"], reports[0]["to"]) == (2, 1)
        assert reports[0]["why"].startswith("it is wrong: states/inputs.npy: its sha256 is not the one in the manifest")
    assert history(two) == [("activate", 1), ("activate", 2), ("rollback", 1)]


def test_a_version_whose_manifest_is_damaged_is_left(two: Path) -> None:
    versions = Store(two).model("demo")
    with in_thread(two) as client:
        (two / "demo" / "2" / "manifest.json").write_text("{}")
        go_live_damaged(two, 2)
        until(lambda: versions.live() == 1)
        assert client.get("/models").json()["rolled_back"]["why"].startswith("it is wrong: manifest.json: format is None")


@pytest.mark.parametrize(
    ("cause", "shown"),
    [
        (MemoryError("cannot allocate 3 GiB"), "MemoryError: cannot allocate 3 GiB; the log has the details"),
        (RuntimeError("no kernel\nin /usr/lib/x"), "RuntimeError: no kernel; the log has the details"),
        (RuntimeError("no kernel in /usr/lib/x"), "RuntimeError; the log has the details"),
        (OSError(errno.EIO, "Input/output error", "/srv/x"), "OSError: Input/output error; the log has the details"),
        (StoreUnavailable("layer_1.npy: cannot be read"), "layer_1.npy: cannot be read"),
    ],
)
def test_a_worker_that_cannot_load_a_version_does_not_roll_back_the_others(
    two: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, cause: Exception, shown: str
) -> None:
    versions, attempts = Store(two).model("demo"), Counter[str]()

    def fails(found: Any, version: int, settings: Any) -> Any:
        if version == 2 and settings.model == "demo":  # the setting tells the two workers apart
            attempts["failed"] += 1
            raise cause
        return load(found, version, settings)

    monkeypatch.setattr("service.rollout.rollout.load", fails)
    monkeypatch.setattr("service.rollout.rollout.FIRST_PAUSE_SECONDS", 0.01)
    with in_thread(two, model="demo") as unfit, in_thread(two) as fit:
        versions.activate(2)
        until(lambda: serving(fit) == 2)
        until(lambda: attempts["failed"] >= 3)
        assert (versions.live(), serving(unfit), serving(fit)) == (2, 1, 2)
        assert unfit.get("/models").json()["failure"]["error"] == shown
        page = unfit.get("/metrics").text
        assert 'sgf_model_swaps_total{result="refused"} 0.0' in page
        assert re.search(r'sgf_model_swaps_total{result="failed"} [1-9]', page)
    assert history(two)[-1] == ("activate", 2)
    assert f"version 2 is not loaded ({type(cause).__name__}: {cause}); version 1 stays in service" in caplog.text


def test_a_worker_whose_backend_a_version_lacks_keeps_the_old_one(tmp_path: Path) -> None:
    Store(tmp_path).publish("demo", small_contents(1), activate=True)
    versions = Store(tmp_path).model("demo")
    with in_thread(tmp_path, backend="onnx") as onnx, in_thread(tmp_path) as other:
        publish(Store(tmp_path), seed=2, activate=True)  # without model.onnx
        until(lambda: serving(other) == 2)
        until(lambda: onnx.get("/models").json()["failure"] is not None)
        assert onnx.get("/models").json()["failure"]["error"].startswith("this version has no model.onnx")
        assert (versions.live(), serving(onnx)) == (2, 1)
        assert onnx.post("/predict", json={"nodes": [1]}).json()["version"] == 1
