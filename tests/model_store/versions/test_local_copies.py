"""Copies of versions on a local disk: made once, verified, repaired, removed when they are not needed, never half there."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from model_store import ModelVersions, Snapshot, SnapshotError, Store
from model_store.errors import LocalCopyError
from model_store.versions.local_copies import LocalCopies
from tests.model_store.samples import publish
from tests.service.serving import until


@pytest.fixture
def versions(tmp_path: Path) -> ModelVersions:
    store = Store(tmp_path / "store")
    for seed in (1, 2, 3):
        publish(store, seed, activate=True)
    return store.model("demo")


@pytest.fixture
def copies(versions: ModelVersions, tmp_path: Path) -> LocalCopies:
    return LocalCopies(tmp_path / "local", versions)


def names(copies: LocalCopies) -> list[str]:
    return sorted(path.name for path in copies.folder.iterdir() if path.name != ".lock")


def ids(versions: ModelVersions, *numbers: int) -> list[str]:
    return sorted(versions.manifest(number).snapshot for number in numbers)


def test_a_copy_answers_as_the_version_and_is_read_from_its_own_folder(
    versions: ModelVersions, copies: LocalCopies, tmp_path: Path
) -> None:
    with copies.open(3) as copy, versions.open(3) as original:
        assert copy.id == original.id
        assert copy.folder.is_relative_to(tmp_path / "local")
        assert copy.replay() == original.replay()
    shutil.rmtree(versions.folder / "3" / "states")  # a second time, only the manifest of the store is read
    with copies.open(3) as copy:
        copy.replay()


def test_the_live_version_and_the_previous_one_are_kept(versions: ModelVersions, copies: LocalCopies) -> None:
    copies.open(1).close()
    with copies.open(2):  # another worker still answers from it
        copies.open(3).close()
        assert names(copies) == ids(versions, 2, 3)
    versions.activate(1)
    copies.open(1).close()
    assert names(copies) == ids(versions, 1, 3)


def test_an_unneeded_copy_that_is_open_stays_until_the_next_copy(versions: ModelVersions, copies: LocalCopies) -> None:
    with copies.open(1):
        copies.open(3).close()
        assert names(copies) == ids(versions, 1, 3)
    copies.open(2).close()
    assert names(copies) == ids(versions, 2, 3)


def test_a_damaged_copy_is_made_again(versions: ModelVersions, copies: LocalCopies) -> None:
    with copies.open(3) as copy:
        damaged = copy.folder / "states" / "inputs.npy"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    with copies.open(3) as copy:
        copy.replay()
    (copies.folder / copy.folder.name / "sums.safetensors").unlink()
    copies.open(3).close()
    assert names(copies) == ids(versions, 3)


def test_a_damaged_version_is_not_served_from_a_copy(versions: ModelVersions, copies: LocalCopies) -> None:
    """The caller then opens the version in the store, which names the damaged file."""
    file = versions.folder / "3" / "states" / "inputs.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(LocalCopyError, match="the local copy cannot be used"):
        copies.open(3)
    with pytest.raises(SnapshotError, match=r"states/inputs.npy: the sha256 differs"):
        versions.open(3)


def test_a_full_disk_is_named_and_leaves_nothing(
    versions: ModelVersions, copies: LocalCopies, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", fail)
        with pytest.raises(LocalCopyError, match=r"cannot be written .No space left on device"):
            copies.open(3)
    assert names(copies) == []
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 99, 1))
        with pytest.raises(LocalCopyError, match=r"needs [\d,]+ bytes, and its file system has 1 free"):
            copies.open(3)
    assert names(copies) == []


def test_a_folder_that_cannot_be_used_is_named(versions: ModelVersions, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalCopyError, match=r"cannot be written .(Not a directory|File exists)"):
        LocalCopies(tmp_path / "file", versions).open(3)


def test_workers_that_start_together_make_one_copy(
    versions: ModelVersions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, copyfile = Counter[str](), shutil.copyfile
    monkeypatch.setattr(shutil, "copyfile", lambda *paths: (copied.update([Path(paths[0]).name]), copyfile(*paths)))
    opened: list[Snapshot] = []
    workers = [
        threading.Thread(target=lambda: opened.append(LocalCopies(tmp_path / "local", versions).open(3))) for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)
    assert len(opened) == 4
    assert copied["manifest.json"] == 1
    for snapshot in opened:
        snapshot.close()


def test_a_process_that_is_killed_while_it_copies_leaves_no_copy(
    versions: ModelVersions, copies: LocalCopies, tmp_path: Path
) -> None:
    """It stops at a file that is a pipe, as it would at a stalled file system."""
    code = f"""
import shutil
from pathlib import Path
from model_store import Store
from model_store.versions.local_copies import LocalCopies
copyfile = shutil.copyfile
def stall(source, target):
    open({str(tmp_path / "pipe")!r}).read() if source.name == "probes.safetensors" else copyfile(source, target)
shutil.copyfile = stall
LocalCopies(Path({str(tmp_path / "local")!r}), Store({str(tmp_path / "store")!r}).model("demo")).open(3)
"""
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        until(lambda: list(copies.folder.glob(".publishing-*/*/*")) if copies.folder.exists() else False)
        process.send_signal(signal.SIGKILL)
    assert [name[:12] for name in names(copies)] == [".publishing-"]
    copies.open(3).close()
    assert names(copies) == ids(versions, 3)
