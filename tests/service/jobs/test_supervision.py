"""The result of a job, determined from its events, the exit of its training, and the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from model_store import Store
from model_store.run_contract import ActivatedEvent, EpochEvent, FailedEvent, FinishedEvent
from service.jobs.job import Job
from service.jobs.job_folder import JobFolder
from service.jobs.supervision import Supervision, with_published_version
from service.jobs.training_process import TrainingProcess
from service.settings import Settings
from tests.service.jobs.retraining import data_root, weak_model

EPOCH = EpochEvent(number=3, epochs=9, loss=1.0, validation=0.5, metric="accuracy").to_line()


class Dead:
    """A training process that has ended."""

    def __init__(self, exit_code: int | None) -> None:
        self.exit_code = exit_code

    def alive(self) -> bool:
        return False


class Dying:
    """A training process that another process has killed, and that still holds its lock."""

    exit_code, releases = None, 0

    def alive(self) -> bool:
        return True

    def release_if_killed(self) -> None:
        self.releases += 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with version 1, which is live, of job `first`, and version 2, of job `second`."""
    folder = tmp_path_factory.mktemp("supervision")
    root = data_root(folder)
    weak_model(folder / "models", root, job="first")
    weak_model(folder / "models", root, job="second", activate=False)
    return folder


def result_of(folder: Path, *lines: str, code: int | None = None, **facts: Any) -> Job:
    job = Job.new("demo", {}).model_copy(update={"state": "running"} | facts)
    settings = Settings(store=folder / "models")
    events = JobFolder(settings, job.id).events
    events.parent.mkdir(parents=True, exist_ok=True)
    events.write_text("".join(f"{line}\n" for line in lines))
    return Supervision(job, cast("TrainingProcess", Dead(code)), settings).step()


def test_a_truncated_line_is_skipped(folder: Path) -> None:
    lines = [EPOCH, EPOCH[:20] + EPOCH, "[1]", "", FinishedEvent(result={}).to_line()]
    record = result_of(folder, *lines)
    assert (record.state, record.epoch) == ("succeeded", 3)


@pytest.mark.parametrize(
    ("code", "state", "error"),
    [
        (1, "failed", "(exit code 1): its log may say why, unless the disk was full"),
        (-9, "failed", "(signal 9): it was killed, or the machine went down"),
        (None, "failed", "ended without a last event: it was killed, or the machine went down"),
        (0, "succeeded", ""),
    ],
)
def test_the_result_of_a_training_without_a_last_event(folder: Path, code: int | None, state: str, error: str) -> None:
    record = result_of(folder, EPOCH, code=code)
    assert record.state == state
    assert error in (record.error or "")


@pytest.mark.parametrize("cancel", [False, True])
def test_a_job_whose_version_is_live_has_succeeded_even_without_a_last_event(folder: Path, cancel: bool) -> None:
    activated = ActivatedEvent(version=1).to_line()
    record = result_of(folder, activated, code=-9, cancel_requested=cancel, id="first")
    assert (record.state, record.error, record.version, record.live) == ("succeeded", None, 1, True)
    failed = FailedEvent(error="no space").to_line()
    record = result_of(folder, activated, failed, code=1, id="first")
    assert (record.state, record.error, record.live) == ("failed", "no space", True), "the failed event decides"
    record = result_of(folder, code=-9, cancel_requested=cancel, id="second")
    assert (record.state, record.version, record.live) == ("cancelled" if cancel else "failed", 2, False), (
        "published, not live"
    )


def test_a_damaged_version_of_another_job_is_skipped(folder: Path) -> None:
    manifest = Store(folder / "models").model("demo").folder / "2" / "manifest.json"
    before = manifest.read_bytes()
    manifest.write_bytes(b"{")
    try:
        job = Job.new("demo", {}).model_copy(update={"id": "first"})
        record = with_published_version(job, Settings(store=folder / "models"))
        assert (record.version, record.live) == (1, True)
    finally:
        manifest.write_bytes(before)


def test_every_step_speeds_up_the_exit_of_a_killed_training(tmp_path: Path) -> None:
    dying = Dying()
    supervision = Supervision(Job.new("demo", {}), cast("TrainingProcess", dying), Settings(store=tmp_path))
    for _ in range(3):
        assert supervision.step().active
    assert dying.releases == 3
