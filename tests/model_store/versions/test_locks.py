"""A lock that another process never releases: every wait times out with an error that names the lock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model_store import ModelVersions, Store, StoreBusy
from model_store.__main__ import main
from model_store.versions.locks import exclusive
from tests.model_store.samples import publish
from tests.model_store.versions.stopped import locked_by_a_stopped_process

WRITES: dict[str, Callable[[ModelVersions], Any]] = {
    "activate": lambda versions: versions.activate(2),
    "roll back": lambda versions: versions.rollback(),
    "prune": lambda versions: versions.prune(keep=1),
    "publish": lambda versions: publish(Store(versions.folder.parent, versions.lock_seconds)),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_writer_times_out_and_names_the_lock(versions: ModelVersions, name: str) -> None:
    impatient = ModelVersions(versions.folder, lock_seconds=0.05)
    with locked_by_a_stopped_process(versions.folder / ".lock"):
        with pytest.raises(StoreBusy, match=r"^the lock demo/\.lock was not free for 0\.05 s: other processes held it$"):
            WRITES[name](impatient)
        assert (impatient.live(), impatient.versions()) == (1, [1, 2])
    assert {path.name for path in versions.folder.glob(".publishing*")} == set()
    impatient.activate(2)


def test_open_times_out_and_reading_the_manifest_needs_no_lock(versions: ModelVersions) -> None:
    impatient = ModelVersions(versions.folder, lock_seconds=0.05)
    with locked_by_a_stopped_process(versions.folder / "1" / "manifest.json"):
        with pytest.raises(StoreBusy, match=r"the lock 1/manifest\.json was not free for"):
            impatient.open(1)
        assert impatient.manifest(1).model == "demo"
    impatient.open(1).close()


def test_a_lock_that_is_released_in_time_is_taken(tmp_path: Path) -> None:
    with locked_by_a_stopped_process(tmp_path / "lock"):
        pass  # the holder is dead after this block
    with exclusive(tmp_path / "lock", seconds=60):
        pass


def test_roll_back_does_not_skip_a_version_that_cannot_be_read_now(versions: ModelVersions) -> None:
    versions.activate(2)
    publish(Store(versions.folder.parent), seed=3, activate=True)
    impatient = ModelVersions(versions.folder, lock_seconds=0.05)
    with locked_by_a_stopped_process(versions.folder / "2" / "manifest.json"):
        with pytest.raises(StoreBusy, match=r"the lock 2/manifest\.json was not free for"):
            impatient.rollback()
        assert impatient.live() == 3
    assert impatient.rollback() == 2


def test_verify_reports_an_unreadable_version_and_continues(
    versions: ModelVersions, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model_store.versions.model_versions.READER_SECONDS", 0.05)
    with locked_by_a_stopped_process(versions.folder / "1" / "manifest.json"):
        assert main(["--store", str(versions.folder.parent), "verify", "--all"]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("demo 1: NOT VERIFIED: the lock 1/manifest.json was not free for")
    assert second.startswith("demo 2: every file is as published")
