"""A new live version replaces the old one without losing a request; a bad version is not served."""

from __future__ import annotations

import dataclasses
import gc
import json
import logging
import os
import re
import shutil
import threading
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from model_store import Store
from model_store.versions.locks import exclusive_unless_held
from service.engines.engine import NumpyEngine
from service.engines.served_model import load
from tests.model_store.samples import publish, small_contents
from tests.service.serving import in_processes, in_thread, refused, until, version_of

SWAPS = int(os.environ.get("SGF_SWAPS", "10"))
"""`make soak` sets 200."""


@pytest.fixture
def two_large(tmp_path: Path) -> Path:
    """Two versions large enough that a leak is seen in the memory of a worker."""
    root = tmp_path / "store"
    for seed in (1, 2):
        contents = small_contents(seed, config={"hidden": 256, "layers": 3, "gnn_activation": False})
        Store(root).publish("demo", contents, onnx=False, activate=seed == 1)
    return root


def is_free(manifest: Path) -> bool:
    """True if no process has this version open."""
    with exclusive_unless_held(manifest) as is_locked:
        return is_locked


def test_a_version_that_goes_live_is_served(two: Path) -> None:
    versions = Store(two).model("demo")
    with in_thread(two) as client:
        first = client.post("/predict", json={"nodes": [3]}).json()
        versions.activate(2)
        until(lambda: version_of(client) == 2)
        second = client.post("/predict", json={"nodes": [3]}).json()
        assert (first["version"], second["version"]) == (1, 2)
        assert second["snapshot"] == versions.manifest(2).snapshot != first["snapshot"]
        until(lambda: is_free(two / "demo" / "1" / "manifest.json"))
        versions.rollback()
        until(lambda: version_of(client) == 1)
        models = client.get("/models").json()
        assert (models["serving"]["version"], models["failure"]) == (1, None)
        assert [(entry["version"], entry["live"]) for entry in models["versions"]] == [(1, True), (2, False)]
        page = client.get("/metrics").text
        assert 'sgf_model_swaps_total{result="taken"} 3.0' in page
        assert 'sgf_model_swaps_total{result="refused"} 0.0' in page  # from the start: alerts need the increase from 0
        created = datetime.fromisoformat(versions.manifest(1).created).timestamp()
        (shown,) = re.findall(r"^sgf_model_created_timestamp_seconds (\S+)", page, re.MULTILINE)
        assert float(shown) == created
        assert f'sgf_model_info{{snapshot="{versions.manifest(1).snapshot}",version="1"}} 1.0' in page


def test_memory_maps_of_the_old_version_are_closed(two: Path) -> None:
    def maps() -> Counter[str]:
        gc.collect()
        lines = Path("/proc/self/maps").read_text().splitlines()
        return Counter(part for line in lines for part in ("/demo/1/", "/demo/2/") if f"{two}{part}" in line)

    with in_thread(two) as client:
        client.post("/predict", json={"new_nodes": [{"id": 1, "features": [0.0] * 5, "neighbors": [0]}]})
        assert set(maps()) == {"/demo/1/"}
        Store(two).model("demo").activate(2)
        until(lambda: version_of(client) == 2)
        until(lambda: set(maps()) == {"/demo/2/"})


def test_a_request_in_flight_finishes_on_the_old_version(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, proceed, extended = threading.Event(), threading.Event(), NumpyEngine.extended
    versions, answers = Store(two).model("demo"), list[Any]()
    question = {"new_nodes": [{"id": "a", "features": [1, 2, 3, 4, 5], "neighbors": [0]}]}

    def wait(*arguments: Any) -> Any:
        begun.set()
        proceed.wait(60)
        return extended(*arguments)

    with in_thread(two, inline_cost=1, cache_bytes=0) as client:
        expected = client.post("/predict", json=question).json()
        monkeypatch.setattr(NumpyEngine, "backend", None)  # compute in a thread, which can wait
        monkeypatch.setattr(NumpyEngine, "extended", wait)
        thread = threading.Thread(target=lambda: answers.append(client.post("/predict", json=question).json()))
        thread.start()
        try:
            assert begun.wait(60)
            monkeypatch.setattr(NumpyEngine, "extended", extended)  # for the probes of the new version
            versions.activate(2)
            until(lambda: version_of(client) == 2)
            assert client.post("/predict", json={"nodes": [3]}).json()["version"] == 2
            assert not is_free(two / "demo" / "1" / "manifest.json")
        finally:
            proceed.set()
        thread.join(timeout=60)
        assert answers == [expected]
        until(lambda: is_free(two / "demo" / "1" / "manifest.json"))


def test_a_version_that_fails_its_probes_on_the_engine_is_not_served(
    two: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The store accepts the version, because the store uses another engine."""
    extended, bad = NumpyEngine.extended, Store(two).model("demo").manifest(2).snapshot

    def answer_wrongly(engine: NumpyEngine, *arguments: Any) -> Any:
        answers = extended(engine, *arguments)
        error = 0.01 if engine._snapshot.id == bad else 0.0
        return dataclasses.replace(answers, logits=answers.logits + error)

    monkeypatch.setattr(NumpyEngine, "extended", answer_wrongly)
    with in_thread(two, auto_rollback=False) as client, caplog.at_level(logging.ERROR):
        Store(two).model("demo").activate(2)
        until(lambda: (client.get("/models").json()["failure"] or {}).get("version") == 2)
        message = client.get("/models").json()["failure"]["error"]
        assert "differ from the full-graph forward" in message
        assert message in caplog.text
        assert client.post("/predict", json={"nodes": [3]}).json()["version"] == 1
        assert re.search(r'sgf_model_swaps_total{result="refused"} [1-9]', client.get("/metrics").text)


def test_a_damaged_version_is_not_served_and_the_old_one_stays(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.rollout.rollout.FIRST_PAUSE_SECONDS", 600.0)
    versions = Store(two).model("demo")
    with in_thread(two) as client:
        states = two / "demo" / "2" / "states"
        damaged = next(states.iterdir())
        content = bytearray(damaged.read_bytes())
        content[-1] ^= 1
        damaged.chmod(0o644)
        damaged.write_bytes(content)
        (two / "demo" / "CURRENT").write_text("2\n")  # not by activate, which verifies
        until(lambda: (client.get("/models").json()["failure"] or {}).get("version") == 2)
        failure = client.get("/models").json()["failure"]
        assert damaged.name in failure["error"]
        assert str(two) not in client.get("/models").text
        assert version_of(client) == 1
        assert 'sgf_model_swaps_total{result="refused"} 1.0' in client.get("/metrics").text
        assert client.post("/predict", json={"nodes": [3]}).json()["version"] == 1
        versions.activate(1)
        until(lambda: client.get("/models").json()["failure"] is None)


def test_the_service_starts_without_a_model_and_serves_the_first_published_one(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with in_thread(root) as client:
        message = refused(client.get("/health/ready"), 503, "not_ready")
        assert message.startswith("waiting for a model to serve: the store has no model yet")
        refused(client.post("/predict", json={"nodes": [1]}), 503, "not_ready")
        assert client.get("/health/live").status_code == 200
        assert "sgf_ready 0.0" in client.get("/metrics").text
        publish(Store(root), activate=True)
        until(lambda: client.get("/health/ready").status_code == 200)
        assert client.post("/predict", json={"nodes": [1]}).status_code == 200
        assert "sgf_ready 1.0" in client.get("/metrics").text


def test_a_store_with_several_models_requires_the_setting_of_the_model(two: Path) -> None:
    publish(Store(two), model="other", activate=True)
    with in_thread(two) as client:
        refused(client.get("/health/ready"), 503, "not_ready")
        assert "--model" in client.get("/models").json()["failure"]["error"]
    with in_thread(two, model="other") as client:
        assert client.get("/health/ready").json()["model"] == "other"


def test_another_model_in_the_store_does_not_affect_the_served_one(two: Path) -> None:
    versions = Store(two).model("demo")
    with in_thread(two) as client:
        publish(Store(two), model="other", activate=True)
        versions.activate(2)
        until(lambda: version_of(client) == 2)
        assert client.get("/models").json()["failure"] is None


def test_texts_of_other_libraries_with_paths_are_not_shown(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with in_thread(two, backend="onnx") as client:  # the versions have no model.onnx: a message of the service
        assert "model.onnx" in client.get("/models").json()["failure"]["error"]

    def fail(*_: object) -> None:
        raise RuntimeError("cannot map /srv/secret")

    monkeypatch.setattr("service.rollout.rollout.load", fail)
    with in_thread(two) as client:
        assert client.get("/models").json()["failure"]["error"] == "RuntimeError; the log has the details"


def test_loading_a_version_is_repeated_after_a_failure(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = []

    def fail_once(*arguments: Any) -> Any:
        attempts.append(arguments)
        if len(attempts) == 1:
            raise MemoryError
        return load(*arguments)

    monkeypatch.setattr("service.rollout.rollout.load", fail_once)
    monkeypatch.setattr("service.rollout.rollout.FIRST_PAUSE_SECONDS", 0.1)
    with in_thread(two) as client:
        until(lambda: client.get("/health/ready").status_code == 200)
    assert len(attempts) == 2


def test_a_store_that_disappears_does_not_stop_the_service(two: Path) -> None:
    with in_thread(two) as client:
        shutil.move(two, two.with_name("away"))
        until(lambda: client.get("/models").json()["failure"] is not None)
        assert client.post("/predict", json={"nodes": [3]}).status_code == 200


@pytest.mark.parametrize("at", ["2026-01-01T00:00:00", "yesterday", ""])
def test_an_invalid_time_in_the_history_does_not_stop_the_start(two: Path, at: str) -> None:
    line = json.dumps({"action": "activate", "version": 1, "at": at})
    (two / "demo" / "HISTORY").write_text(f"{line}\n")
    with in_thread(two) as client:
        assert version_of(client) == 1


def test_models_lists_the_versions_and_reports_damage(two: Path) -> None:
    versions = Store(two).model("demo")
    with in_thread(two) as client:
        assert client.get("/models").json()["problem"] is None
        with (two / "demo" / "HISTORY").open("a") as log:
            log.write("garbage\n")
        answer = client.get("/models").json()
        assert "HISTORY: 1 line(s) cannot be understood" in answer["problem"]
        assert [(entry["version"], entry["live"]) for entry in answer["versions"]] == [(1, True), (2, False)]
        (two / "demo" / "CURRENT").write_text("garbage")
        (two / "demo" / "2" / "manifest.json").unlink()
        answer = client.get("/models").json()
        assert "CURRENT: holds 'garbage'" in answer["problem"]
        assert [(entry["version"], "damaged" in entry) for entry in answer["versions"]] == [(1, False), (2, True)]
        assert version_of(client) == 1
        versions.activate(1)
        assert client.get("/models").json()["problem"] is None


def test_swaps_under_load_with_two_workers_lose_no_request(two_large: Path) -> None:
    """Every answer is 200 and belongs to the version that it names."""
    versions = Store(two_large).model("demo")
    question = {"nodes": [3], "new_nodes": [{"id": "a", "features": [0.5, 1.0, -1.0, 0.0, 2.0], "neighbors": [0, 5]}]}
    seen: Counter[int] = Counter()
    wrong: list[str] = []
    stop = threading.Event()
    with in_processes(two_large, workers=2) as (client, process, _lines):

        def count_swaps() -> int:
            """Swaps of all workers so far."""
            page = client.get("/metrics").text
            return int(page.partition('sgf_model_swaps_total{result="taken"} ')[2].partition(".")[0] or -1)

        expected = {}
        for turn, number in enumerate((1, 2, 1), start=1):
            versions.activate(number)
            until(lambda turn=turn: count_swaps() == 2 * turn)
            expected[number] = client.post("/predict", json=question).json()["predictions"]
        assert not np.allclose(expected[1][0]["probabilities"], expected[2][0]["probabilities"], atol=1e-3)

        def send_requests() -> None:
            while not stop.is_set():
                with httpx.Client(
                    base_url=client.base_url, timeout=30
                ) as own:  # a new connection may reach the other worker
                    for _ in range(20):
                        response = own.post("/predict", json=question)
                        answer = response.json()
                        if response.status_code == 200 and answer["predictions"] == expected[answer["version"]]:
                            seen[answer["version"]] += 1
                        else:
                            wrong.append(response.text)

        threads = [threading.Thread(target=send_requests) for _ in range(3)]
        for thread in threads:
            thread.start()
        memory = []
        for turn in range(SWAPS):
            before, swaps = seen.total(), count_swaps()
            versions.activate(2 - turn % 2)
            until(lambda before=before: seen.total() > before + 20)
            until(lambda swaps=swaps: count_swaps() == swaps + 2)
            memory.append(private_bytes(process.pid))
        stop.set()
        for thread in threads:
            thread.join(timeout=20)
    assert wrong == []
    assert min(seen[1], seen[2]) > 20
    assert np.median(memory[-3:]) < 1.05 * np.median(memory[2:5]), memory  # old versions leave no memory behind


def private_bytes(parent: int) -> int:
    """Anonymous memory of the children of a process: the workers."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    status = [Path(f"/proc/{child}/status").read_text() for child in children]
    return sum(int(line.split()[1]) * 1024 for text in status for line in text.splitlines() if line.startswith("RssAnon"))
