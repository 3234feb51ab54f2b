"""A version that fails during its probation is rolled back, once."""

from __future__ import annotations

import errno
import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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
from tests.service.serving import in_thread, until, version_of


@pytest.fixture
def bad_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 2 passes its probes, and its answers fail."""
    compute = Batcher.compute

    async def fail(self: Batcher, model: Any, rows: Any, request: Any) -> Any:
        if model.version == 2:
            raise RuntimeError("a fault of a library")
        return await compute(self, model, rows, request)

    monkeypatch.setattr(Batcher, "compute", fail)


def history(root: Path) -> list[tuple[str, int]]:
    return [(event.action, event.version) for event in Store(root).model("demo").history().entries]


@pytest.mark.usefixtures("bad_answers")
def test_a_version_whose_answers_fail_is_rolled_back(two: Path) -> None:
    versions = Store(two).model("demo")
    with in_thread(two, probation_answers=5) as client:
        until(lambda: client.get("/models").json()["probation"] == 1)
        versions.activate(2)
        until(lambda: client.get("/models").json()["probation"] == 2)
        wrong = [client.post("/predict", json={"nodes": [10**6]}).status_code for _ in range(30)]
        statuses = [client.post("/predict", json={"nodes": [1]}).status_code for _ in range(5)]
        assert wrong + statuses == [404] * 30 + [500] * 5
        until(lambda: version_of(client) == 1)
        assert client.post("/predict", json={"nodes": [1]}).status_code == 200
        models = client.get("/models").json()
        assert (models["rolled_back"]["from"], models["rolled_back"]["to"], models["probation"]) == (2, 1, None)
        assert models["rolled_back"]["why"] == "5 of its first 5 answers in one worker failed"
        assert 'sgf_model_swaps_total{result="rolled_back"} 1.0' in client.get("/metrics").text
    assert history(two) == [("activate", 1), ("activate", 2), ("rollback", 1)]


def test_refusals_do_not_count_as_failures_of_a_version(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compute = Batcher.compute

    async def refuse(self: Batcher, model: Any, rows: Any, request: Any) -> Any:
        if model.version == 2:
            raise Refusal("deadline", "no answer in time")
        return await compute(self, model, rows, request)

    monkeypatch.setattr(Batcher, "compute", refuse)
    Store(two).model("demo").activate(2)
    wait_for_checks = count_checks(two, monkeypatch)
    with in_thread(two, probation_answers=5) as client:
        statuses = {client.post("/predict", json={"nodes": [1]}).status_code for _ in range(20)}
        wait_for_checks(1)
        assert statuses == {503}
        assert client.get("/models").json()["probation"] == 2
    assert history(two)[-1] == ("activate", 2)


def test_a_version_that_a_roll_back_made_live_is_not_on_probation(two: Path) -> None:
    """The worker serves version 1 all the time, and does not notice that version 2 was live."""
    versions, settings = Store(two).model("demo"), Settings(store=two, probation_answers=1)
    probation = Probation(settings, Metrics())
    probation.begin(versions, 1)
    assert probation.version == 1
    versions.activate(2)
    versions.rollback()
    probation.record_answer(failed=True)
    probation.check(versions)
    assert (probation.version, versions.live()) == (None, 1)


def test_a_roll_back_of_a_busy_store_is_repeated(two: Path) -> None:
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


def count_checks(store: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Returns a function that waits until so many workers have checked their version twice: the second check is new."""
    check, checks = Probation.check, Counter[int]()

    def counted(self: Probation, versions: ModelVersions) -> None:
        check(self, versions)
        checks[id(self)] += versions.folder.is_relative_to(store)

    def wait_for_checks(workers: int) -> None:
        checks.clear()
        until(lambda: sum(count >= 2 for count in list(checks.values())) == workers)

    monkeypatch.setattr(Probation, "check", counted)
    return wait_for_checks


@pytest.mark.usefixtures("bad_answers")
def test_no_roll_back_after_few_failures_or_after_probation_or_if_it_is_off(
    two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_checks = count_checks(two, monkeypatch)
    versions = Store(two).model("demo")
    versions.activate(2)
    with in_thread(two, probation_answers=6) as client:
        for _ in range(5):
            assert client.post("/predict", json={"nodes": [1]}).status_code == 500
        for settings in ({"auto_rollback": False}, {"probation_seconds": 0.01}):
            with in_thread(two, probation_answers=1, **settings) as other:
                for _ in range(10):
                    assert other.post("/predict", json={"nodes": [1]}).status_code == 500
                wait_for_checks(2)
        assert versions.live() == 2
        assert client.get("/models").json()["probation"] == 2


def activate_damaged(root: Path, version: int) -> None:
    """Makes a version live whose content is damaged."""
    states = root / "demo" / str(version) / "states" / "inputs.npy"
    content = bytearray(states.read_bytes())
    content[-1] ^= 1
    states.write_bytes(content)
    log = ActivationLog(root / "demo")
    log.append(log.history(), HistoryEntry("activate", version, datetime.now(UTC).isoformat()))


def test_one_of_several_workers_rolls_back_a_damaged_version(two: Path) -> None:
    versions = Store(two).model("demo")
    with in_thread(two) as first, in_thread(two) as second:
        activate_damaged(two, 2)
        until(lambda: versions.live() == 1)
        until(lambda: all(client.get("/models").json()["failure"] is None for client in (first, second)))
        assert (version_of(first), version_of(second)) == (1, 1)
        reports = [client.get("/models").json()["rolled_back"] for client in (first, second)]
        assert reports[0] == reports[1], "every worker reports the roll-back"
        assert (reports[0]["from"], reports[0]["to"]) == (2, 1)
        assert reports[0]["why"].startswith("it is wrong: states/inputs.npy: the sha256 differs from the manifest")
    assert history(two) == [("activate", 1), ("activate", 2), ("rollback", 1)]


def test_a_version_with_a_damaged_manifest_is_rolled_back(two: Path) -> None:
    versions = Store(two).model("demo")
    with in_thread(two) as client:
        (two / "demo" / "2" / "manifest.json").write_text("{}")
        activate_damaged(two, 2)
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
def test_a_worker_that_cannot_load_a_version_does_not_roll_back(
    two: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, cause: Exception, shown: str
) -> None:
    versions, attempts = Store(two).model("demo"), Counter[str]()

    def fail(versions: Any, version: int, settings: Any) -> Any:
        if version == 2 and settings.model == "demo":  # only one of the two workers has this setting
            attempts["failed"] += 1
            raise cause
        return load(versions, version, settings)

    monkeypatch.setattr("service.rollout.rollout.load", fail)
    monkeypatch.setattr("service.rollout.rollout.FIRST_PAUSE_SECONDS", 0.01)
    with in_thread(two, model="demo") as failing, in_thread(two) as other:
        versions.activate(2)
        until(lambda: version_of(other) == 2)
        until(lambda: attempts["failed"] >= 3)
        assert (versions.live(), version_of(failing), version_of(other)) == (2, 1, 2)
        assert failing.get("/models").json()["failure"]["error"] == shown
        page = failing.get("/metrics").text
        assert 'sgf_model_swaps_total{result="refused"} 0.0' in page
        assert re.search(r'sgf_model_swaps_total{result="failed"} [1-9]', page)
    assert history(two)[-1] == ("activate", 2)
    assert f"version 2 is not loaded ({type(cause).__name__}: {cause}); version 1 stays in service" in caplog.text


def test_a_worker_keeps_the_old_version_if_the_new_one_lacks_its_backend(tmp_path: Path) -> None:
    Store(tmp_path).publish("demo", small_contents(1), activate=True)
    versions = Store(tmp_path).model("demo")
    with in_thread(tmp_path, backend="onnx") as onnx, in_thread(tmp_path) as other:
        publish(Store(tmp_path), seed=2, activate=True)  # without model.onnx
        until(lambda: version_of(other) == 2)
        until(lambda: onnx.get("/models").json()["failure"] is not None)
        assert onnx.get("/models").json()["failure"]["error"].startswith("this version has no model.onnx")
        assert (versions.live(), version_of(onnx)) == (2, 1)
        assert onnx.post("/predict", json={"nodes": [1]}).json()["version"] == 1
