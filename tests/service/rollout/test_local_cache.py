"""With copies on a local disk, a store that stalls stalls no answer: over HTTP, with a file of the store that blocks."""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from model_store import Store
from service.rollout import rollout
from tests.service.serving import in_processes, in_thread, until, version_of

NEW = {"new_nodes": [{"id": "a", "features": [1, 2, 3, 4, 5], "neighbors": [0]}]}


@contextmanager
def stalled(store: Path) -> Iterator[None]:
    """CURRENT is a pipe without a writer: opening it blocks, as a network file system does whose server is gone."""
    current = store / "demo" / "CURRENT"
    content = current.read_bytes()
    os.mkfifo(store / "pipe")
    (store / "pipe").replace(current)
    try:
        yield
    finally:
        os.link(current, store / "pipe")
        make_live(store, content)
        threading.Thread(target=end_waiting, args=(store / "pipe",), daemon=True).start()


def end_waiting(pipe: Path) -> None:
    """Ends the calls that wait for a writer; again and again, because a call may begin to wait after the path was read."""
    for _ in range(100):
        os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))
        time.sleep(0.05)


def make_live(store: Path, content: bytes) -> None:
    """Replaces CURRENT, without the checks of an activation."""
    (store / "new").write_bytes(content)
    (store / "new").replace(store / "demo" / "CURRENT")


def open_files(process: psutil.Process) -> set[str]:
    """Of a process: its open and mapped files."""
    return {file.path for file in process.open_files()} | {entry.path for entry in process.memory_maps()}


def family(process: int) -> list[psutil.Process]:
    parent = psutil.Process(process)
    return [parent, *parent.children(recursive=True)]


def test_a_stalled_store_stalls_no_answer_and_no_shutdown(two: Path, tmp_path: Path) -> None:
    settings = {"local_cache": str(tmp_path / "local"), "inline_cost": "1", "deadline_seconds": "3"}
    with in_processes(two, **settings) as (client, process, _):
        # The compute process has the lowest priority: on a busy machine its start may take longer than the deadline.
        until(lambda: client.post("/predict", json=NEW).status_code == 200)
        expected = client.post("/predict", json=NEW).json()
        files = {path for each in family(process.pid) for path in open_files(each)}
        assert any(path.startswith(str(tmp_path / "local")) for path in files)
        assert not any(path.startswith(str(two / "demo" / "1")) for path in files)
        with stalled(two):
            for _ in range(2):
                assert client.get("/health/live").status_code == 200
                assert client.get("/health/ready").json()["version"] == 1
                assert client.post("/predict", json=NEW | {"embeddings": True}).status_code == 200
                assert client.post("/predict", json=NEW).json() == expected
                assert client.post("/predict", json={"nodes": [3]}).status_code == 200
                assert "sgf_ready 1.0" in client.get("/metrics").text
                listed = client.get("/models").json()
                assert (listed["serving"]["version"], listed["versions"]) == (1, [])
            client.close()
            process.terminate()
            assert process.wait(timeout=30) == 0


def test_a_store_that_answers_again_is_followed(
    two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rollout, "STALL_SECONDS", 0.2)
    with in_thread(two, local_cache=tmp_path / "local", deadline_seconds=1.0) as client:
        with caplog.at_level(logging.WARNING, "service.rollout.rollout"), stalled(two):
            until(lambda: "the store has not answered for 0.2 s); version 1 stays in service" in caplog.text)
            assert client.get("/models").json()["failure"]["error"] == "the store has not answered for 0.2 s"
        Store(two).model("demo").activate(2)
        until(lambda: version_of(client) == 2)
        assert client.get("/models").json()["failure"] is None


def test_many_stalled_pages_do_not_stall_the_others(two: Path, tmp_path: Path) -> None:
    with in_thread(two, local_cache=tmp_path / "local", deadline_seconds=0.3) as client, stalled(two):
        for _ in range(12):  # more than the threads of a reader
            assert client.get("/models").json()["versions"] == []
        assert client.get("/nodes/3").status_code == 200
        assert client.get("/graph").status_code == 200
        assert client.post("/predict", json={"nodes": [3]}).status_code == 200


def test_a_version_is_served_from_the_store_if_it_cannot_be_copied(
    two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 99, 1))
    with caplog.at_level(logging.WARNING), in_thread(two, local_cache=tmp_path / "local") as client:
        assert client.post("/predict", json={"nodes": [3]}).status_code == 200
        assert "version 1 is opened in the store" in caplog.text
        assert "its file system has 1 free" in caplog.text


def test_a_damaged_version_is_rolled_back_with_copies_too(
    two: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    versions = Store(two).model("demo")
    with in_thread(two, local_cache=tmp_path / "local") as client:
        versions.activate(2)
        until(lambda: version_of(client) == 2)
        versions.rollback()
        until(lambda: version_of(client) == 1)
        shutil.rmtree(tmp_path / "local" / "demo" / versions.manifest(2).snapshot)
        file = two / "demo" / "2" / "states" / "inputs.npy"
        file.write_bytes(file.read_bytes()[:-1] + b"x")
        with (two / "demo" / "HISTORY").open("a") as history:
            now = datetime.now(UTC).isoformat()
            history.write(json.dumps({"action": "activate", "version": 2, "at": now}) + "\n")
        make_live(two, b"2\n")
        until(lambda: "rolled back from version 2 to 1: it is wrong: states/inputs.npy: the sha256" in caplog.text)
        assert version_of(client) == 1
