"""Events on a full disk, and a run whose fencing file is removed."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from model_store import ModelVersions, Snapshot, Store
from model_store.run_contract import EpochEvent, FailedEvent, FinishedEvent, StartedEvent
from model_store.run_settings import Activation
from tests.training.release.test_retraining import events, run, write_graph
from tests.training.samples import config, labelled
from training import publish
from training.cli.events import EventWriter, RunAbandoned
from training.fit.loop import TrainingConfig, train
from training.release.delivery import deliver
from training.release.gate import Verdict

TRAIN = [sys.executable, "-m", "training", "--epochs", "30", "--hidden", "8", "--no-checkpoint", "--no-publish", "--json"]
MOUNT = ["unshare", "--mount", "--map-root-user", "sh", "-c", 'mount -t tmpfs -o size=4k none "$1" && shift && "$@"', "sh"]


def test_a_file_that_cannot_grow_does_not_end_a_run(tmp_path: Path) -> None:
    """The kernel lets no file grow past 600 bytes, which is in the middle of what is told of the data."""
    write_graph(tmp_path / "graph.npz")
    command = [*TRAIN, "--data", str(tmp_path / "graph.npz"), "--events", str(tmp_path / "events")]
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))  # noqa: E731
    result = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["epochs"] == 30
    assert (tmp_path / "events").stat().st_size == 600


def test_a_full_disk_does_not_end_a_run(tmp_path: Path) -> None:
    """A real file system of one page, in a mount namespace of its own."""
    write_graph(tmp_path / "graph.npz")
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run([*MOUNT, str(disk), "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no mount namespaces: a full disk was NOT tested (a file size limit was)")
    fill = ["sh", "-c", 'head -c 4000 /dev/zero > "$0/events"; echo >> "$0/events"; "$@"', str(disk)]
    command = [*TRAIN, "--data", str(tmp_path / "graph.npz"), "--events", str(disk / "events")]
    result = subprocess.run([*MOUNT, str(disk), *fill, *command], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["epochs"] == 30


def test_a_line_that_is_cut_short_harms_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, room = os.write, [10**6]

    def limited(handle: int, content: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = write(handle, content[: room[0]])
        room[0] -= taken
        return taken

    writer = EventWriter(tmp_path / "events")
    monkeypatch.setattr(os, "write", limited)
    writer.write(StartedEvent(pid=1))
    room[0] = 20
    writer.write(EpochEvent(number=1, epochs=9, loss=1.0, validation=0.5, metric="accuracy"))
    writer.write(FailedEvent(error="no space"))
    room[0] = 10**6
    writer.write(FinishedEvent(result={}))
    first, cut, last = (tmp_path / "events").read_text().splitlines()
    assert (json.loads(first)["event"], len(cut), json.loads(last)["event"]) == ("started", 20, "finished")


@pytest.mark.parametrize("more", [[], ["--activate"], ["--activate", "if_better"]])
def test_without_its_fencing_file_a_run_publishes_nothing(tmp_path: Path, more: list[str]) -> None:
    write_graph(tmp_path / "graph.npz")
    fencing_file = tmp_path / "fencing_file"
    wanted = ["--epochs", "2", "--no-checkpoint", "--only-while", str(fencing_file), *more]
    assert run(tmp_path, *wanted) == 1
    assert events(tmp_path / "events")[-1]["error"].startswith("the service abandoned this job")
    assert not (tmp_path / "models" / "demo").exists()
    fencing_file.touch()
    assert run(tmp_path, *wanted) == 0


@pytest.mark.parametrize("mode", ["always", "if_better"])
def test_without_its_fencing_file_a_version_does_not_go_live(tmp_path: Path, mode: Activation) -> None:
    versions, fencing_file = two_versions(tmp_path), tmp_path / "fencing_file"
    fencing_file.touch()

    def judged(_live: Any) -> Verdict:
        fencing_file.unlink()  # the last moment
        return Verdict(True, "so says the test")

    if mode == "always":
        fencing_file.unlink()
    with pytest.raises(RunAbandoned):
        deliver(versions, 2, mode, judged, EventWriter(None, fencing_file))
    assert versions.live() == 1


@pytest.mark.parametrize("mode", ["always", "if_better"])
def test_a_fencing_file_that_is_removed_during_verification_is_noticed(
    tmp_path: Path, mode: Activation, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions, fencing_file = two_versions(tmp_path), tmp_path / "fencing_file"
    fencing_file.touch()
    replay = Snapshot.replay

    def taken_away(snapshot: Snapshot) -> dict[str, float]:
        fencing_file.unlink(missing_ok=True)
        return replay(snapshot)

    def judged(_live: Any) -> Verdict:
        monkeypatch.setattr(Snapshot, "replay", taken_away)
        return Verdict(True, "so says the test")

    if mode == "always":
        monkeypatch.setattr(Snapshot, "replay", taken_away)
    with pytest.raises(RunAbandoned):
        deliver(versions, 2, mode, judged, EventWriter(None, fencing_file))
    assert versions.live() == 1


def two_versions(folder: Path) -> ModelVersions:
    """The first one is live."""
    data, store = labelled(nodes=200), Store(folder / "models")
    for _ in range(2):
        trained = train(config(data), data, TrainingConfig(epochs=1))
        publish(trained.model, data.graph, store=store, name="demo", onnx=False)
    versions = store.model("demo")
    versions.activate(1)
    return versions
