"""Publishing, activation, roll-back and pruning."""

from __future__ import annotations

import errno
import json
import shutil
from datetime import UTC, datetime
from pathlib import Path, PosixPath
from typing import Any

import pytest

from model_store import (
    ModelVersions,
    NothingToRollBackTo,
    Snapshot,
    SnapshotError,
    Store,
    StoreUnavailable,
    UnknownModel,
    UnknownVersion,
)
from model_store.versions.activation_log import ActivationLog
from tests.model_store.samples import publish


def four_versions(store: Store) -> ModelVersions:
    for seed in range(4):
        publish(store, seed)
    return store.model("demo")


def test_version_numbers_rise_and_publishing_activates_nothing(store: Store) -> None:
    assert store.models() == []
    versions = four_versions(store)
    assert store.models() == ["demo"]
    assert versions.versions() == [1, 2, 3, 4]
    assert versions.live() is None
    with pytest.raises(UnknownVersion, match="no version of demo is live; activate one"):
        versions.open()
    with pytest.raises(UnknownModel, match=r"there is no model other in this store \(existing models: demo\)"):
        store.model("other")


def test_roll_backs_follow_the_history_of_live_versions(store: Store) -> None:
    versions = four_versions(store)
    for version in (1, 3, 2):
        versions.activate(version)
    assert [versions.rollback(), versions.rollback()] == [3, 1]
    with pytest.raises(NothingToRollBackTo, match="demo stays at version 1: no other version was live before"):
        versions.rollback()
    versions.activate(4)
    assert versions.rollback() == 1
    log = [(entry.action, entry.version) for entry in versions.history().entries]
    assert log == [
        ("activate", 1),
        ("activate", 3),
        ("activate", 2),
        ("rollback", 3),
        ("rollback", 1),
        ("activate", 4),
        ("rollback", 1),
    ]


def test_activating_the_live_version_changes_nothing(store: Store) -> None:
    versions = four_versions(store)
    versions.activate(1)
    versions.activate(1)
    assert len(versions.history().entries) == 1


def test_roll_back_skips_removed_and_damaged_versions(store: Store) -> None:
    versions = four_versions(store)
    for version in (1, 2, 3, 4):
        versions.activate(version)
    (versions.folder / "2" / "weights.safetensors").write_bytes(b"")
    (versions.folder / "3").rename(versions.folder.parent / "gone")
    assert versions.rollback() == 1
    with pytest.raises(NothingToRollBackTo):
        versions.rollback()


def test_a_roll_back_without_a_target_states_the_reason(store: Store) -> None:
    versions = four_versions(store)
    versions.activate(1)
    versions.activate(2)
    (versions.folder / "1" / "weights.safetensors").write_bytes(b"")
    with pytest.raises(NothingToRollBackTo, match=r"1 is damaged \(weights.safetensors: is 0 bytes long"):
        versions.rollback()
    assert versions.live() == 2


def test_a_damaged_version_is_not_activated(versions: ModelVersions) -> None:
    (versions.folder / "2" / "sums.safetensors").write_bytes(b"x")
    with pytest.raises(SnapshotError, match=r"sums.safetensors: is 1 bytes long"):
        versions.activate(2)
    assert versions.live() == 1


@pytest.mark.parametrize("action", ["activate", "rollback"])
def test_an_interrupted_change_is_ignored(versions: ModelVersions, action: str) -> None:
    """HISTORY is written before CURRENT. Here a process died between the two writes."""
    versions.activate(2)
    log = versions.folder / "HISTORY"
    log.write_text(log.read_text() + json.dumps({"action": action, "version": 1, "at": "2026-01-01T00:00:00+00:00"}) + "\n")
    assert [entry.version for entry in versions.history().entries] == [1, 2]
    assert versions.rollback() == 1
    assert [entry.action for entry in versions.history().entries] == ["activate", "activate", "rollback"]


def test_damage_to_current_and_history_is_reported(versions: ModelVersions) -> None:
    (versions.folder / "HISTORY").write_text("{")
    state = versions.state()
    assert (state.live, state.history.entries) == (1, ())
    assert state.problem is not None
    assert state.problem.startswith("HISTORY: 1 line(s) cannot be understood")
    (versions.folder / "CURRENT").write_text("../2")
    with pytest.raises(SnapshotError, match=r"CURRENT: holds '../2', expected the number of a version"):
        versions.open()
    (versions.folder / "CURRENT").write_text("9\n")
    with pytest.raises(SnapshotError, match="CURRENT: names version 9, which does not exist"):
        versions.open()


@pytest.mark.parametrize("current", [b"", b"garbage", b"\xff", b"999999999999"])
@pytest.mark.parametrize(
    "history",
    [
        b"{",
        b"[" * 100_000,
        b'{"action": "activate", "version": [1], "at": ""}',
        b'{"action": "dance", "version": 1, "at": ""}',
        b"1",
    ],
)
def test_activation_repairs_current_and_history(versions: ModelVersions, current: bytes, history: bytes) -> None:
    (versions.folder / "CURRENT").write_bytes(current)
    (versions.folder / "HISTORY").write_bytes(history)
    for use in (versions.live, versions.history, versions.open, versions.rollback):
        with pytest.raises(SnapshotError):
            use()
    versions.activate(2)
    assert versions.live() == 2
    assert [entry.version for entry in versions.history().entries] == [2]
    assert (versions.folder / "CURRENT.damaged").read_bytes() == current
    assert (versions.folder / "HISTORY.damaged").read_bytes() == history


DAMAGED_LINES = (
    "{",
    "\0" * 40,
    "\ufffd",
    '{"action": "activate", "version": 2, "at": "yesterday"}',
    '{"action": "activate", "version": -2, "at": "2026-01-01"}',
)


@pytest.mark.parametrize("damaged", DAMAGED_LINES)
def test_a_damaged_line_of_the_history_leaves_the_other_lines_readable(store: Store, damaged: str) -> None:
    versions = four_versions(store)
    for version in (1, 2, 3):
        versions.activate(version)
    log = versions.folder / "HISTORY"
    first, _second, third = log.read_bytes().splitlines(keepends=True)
    damage = damaged.encode() + b"\n"
    log.write_bytes(first + damage + third)
    history = versions.history()
    assert ([entry.version for entry in history.entries], history.unreadable) == ([1, 3], 1)
    assert "HISTORY: 1 line(s) cannot be understood" in (versions.state().problem or "")
    assert versions.prune(keep=1).removed == [2]
    assert versions.rollback() == 1
    assert ([entry.version for entry in versions.history().entries], versions.state().problem) == ([1, 3, 1], None)
    assert (versions.folder / "HISTORY.damaged").read_bytes() == first + damage + third


def test_a_damaged_last_line_is_not_treated_as_an_interrupted_change(versions: ModelVersions) -> None:
    versions.activate(2)
    log = versions.folder / "HISTORY"
    log.write_bytes(log.read_bytes()[:-20])
    assert [entry.version for entry in versions.history().entries] == [1]
    assert versions.rollback() == 1


def test_a_damaged_current_leaves_the_history_readable(store: Store) -> None:
    versions = four_versions(store)
    versions.activate(1)
    versions.activate(2)
    (versions.folder / "CURRENT").write_text("garbage")
    state = versions.state()
    assert (state.live, [entry.version for entry in state.history.entries]) == (None, [1, 2])
    assert "CURRENT: holds 'garbage'" in (state.problem or "")
    versions.activate(3)
    assert [entry.version for entry in versions.history().entries] == [1, 2, 3]
    assert versions.rollback() == 2


def test_a_history_with_an_io_error_is_not_renamed(versions: ModelVersions, monkeypatch: pytest.MonkeyPatch) -> None:
    """An I/O error does not prove that the content is damaged."""
    opened = Path.open

    def fails(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == "HISTORY":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return opened(path, *arguments, **options)

    with monkeypatch.context() as broken:
        broken.setattr(Path, "open", fails)
        for use in (versions.history, versions.rollback, lambda: versions.activate(2)):
            with pytest.raises(StoreUnavailable, match="HISTORY: cannot be read: Input/output error"):
                use()
        assert versions.state().problem == "HISTORY: cannot be read: Input/output error"
    assert (versions.live(), [entry.version for entry in versions.history().entries]) == (1, [1])


def test_a_time_without_an_offset_is_utc(versions: ModelVersions) -> None:
    (versions.folder / "HISTORY").write_text('{"action": "activate", "version": 1, "at": "2026-01-01T12:00:00"}\n')
    (entry,) = versions.history().entries
    assert datetime.fromisoformat(entry.at) == datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_publishing_works_with_a_damaged_current(versions: ModelVersions) -> None:
    (versions.folder / "CURRENT").write_bytes(b"garbage")
    assert publish(Store(versions.folder.parent)) == 3


def test_a_version_of_another_model_is_refused(versions: ModelVersions) -> None:
    other = versions.folder.with_name("other")
    shutil.copytree(versions.folder / "2", other / "7")
    for use in (ModelVersions(other).activate, ModelVersions(other).manifest, ModelVersions(other).open):
        with pytest.raises(SnapshotError, match=r"manifest.json: belongs to model demo, expected other"):
            use(7)
    assert ModelVersions(other).prune(keep=1).in_use == []


def test_unexpected_files_among_the_versions_are_ignored(store: Store) -> None:
    versions = four_versions(store)
    versions.activate(4)
    (versions.folder / "1" / "manifest.json").unlink()
    (versions.folder / "1" / "manifest.json").symlink_to("/etc/passwd")
    (versions.folder / "2" / "manifest.json").unlink()
    (versions.folder / "2" / "manifest.json").mkdir()
    (versions.folder / "5").touch()
    (versions.folder / "6").symlink_to(versions.folder / "4")
    assert versions.versions() == [1, 2, 3, 4]
    assert versions.prune(keep=1).removed == [1, 2, 3]
    assert Path("/etc/passwd").exists()
    assert publish(store, 7) == 7


def test_history_is_complete_while_a_version_goes_live(
    versions: ModelVersions,
) -> None:
    answers = iter([1, 2, 2])

    class Changing(ActivationLog):
        def live(self) -> int:
            now = next(answers)
            if now == 1:
                log = versions.folder / "HISTORY"
                log.write_text(
                    log.read_text()
                    + json.dumps({"action": "activate", "version": 2, "at": "2026-01-01T00:00:00+00:00"})
                    + "\n"
                )
            return now

    assert [entry.version for entry in Changing(versions.folder).history().entries] == [1, 2]


def test_pruning_keeps_the_newest_the_live_and_the_roll_back_version(store: Store) -> None:
    versions = four_versions(store)
    publish(store, 4)
    versions.activate(2)
    versions.activate(3)
    pruned = versions.prune(keep=1)
    assert (pruned.removed, pruned.in_use, pruned.leftovers) == ([1, 4], [], 0)
    assert versions.versions() == [2, 3, 5]
    assert versions.rollback() == 2
    with pytest.raises(ValueError, match="expected at least 1"):
        versions.prune(keep=0)


def test_pruning_keeps_a_roll_back_version_if_others_are_gone(store: Store) -> None:
    versions = four_versions(store)
    for version in (1, 2, 3):
        versions.activate(version)
    (versions.folder / "2").rename(versions.folder.parent / "gone")
    versions.prune(keep=1)
    assert versions.rollback() == 1


def test_a_version_cannot_be_pruned_while_it_goes_live(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = four_versions(store)
    versions.activate(1)
    replay = Snapshot.replay

    def slow(snapshot: Snapshot) -> dict[str, float]:
        assert versions.prune(keep=1).in_use == [2]
        return replay(snapshot)

    monkeypatch.setattr(Snapshot, "replay", slow)
    versions.activate(2)
    versions.open().close()


def test_an_open_version_is_not_pruned(store: Store) -> None:
    versions = four_versions(store)
    snapshot = versions.open(1)
    pruned = versions.prune(keep=1)
    assert (pruned.removed, pruned.in_use) == ([2, 3], [1])
    snapshot.close()
    assert versions.prune(keep=1).removed == [1]


def test_a_failed_open_releases_its_lock(store: Store) -> None:
    versions = four_versions(store)
    (versions.folder / "1" / "weights.safetensors").write_bytes(b"")
    with pytest.raises(SnapshotError):
        versions.open(1)
    assert 1 in versions.prune(keep=1).removed


def test_version_numbers_are_never_reused(store: Store) -> None:
    versions = four_versions(store)
    versions.prune(keep=1)
    assert publish(store, 9) == 5


def test_pruning_removes_leftovers_of_dead_processes_only(versions: ModelVersions) -> None:
    dead = versions.folder / ".publishing-dead"
    dead.mkdir()
    (dead / "states").mkdir()
    (versions.folder / ".publishing-dead.lock").touch()
    (versions.folder / ".publishing-early.lock").touch()
    (versions.folder / ".removing-dead").mkdir()
    (versions.folder / ".CURRENT-dead").touch()
    (versions.folder / ".git").mkdir()
    (versions.folder / ".nfs0001").touch()
    with versions._staging_folder() as staging:
        assert versions.prune(keep=2).leftovers == 4
        assert staging.is_dir()
        hidden = {path.name for path in versions.folder.glob(".*")}
        assert hidden == {".lock", ".git", ".nfs0001", staging.name, f"{staging.name}.lock"}
    assert {path.name for path in versions.folder.glob(".*")} == {".lock", ".git", ".nfs0001"}


def test_the_history_records_the_replaced_version_and_the_reason(versions: ModelVersions) -> None:
    live = versions.live()
    publish(Store(versions.folder.parent), seed=9, activate=True)
    left = versions.live()
    versions.rollback(why="it failed")
    last = versions.history().entries[-1]
    assert (last.action, last.version, last.left, last.why) == ("rollback", live, left, "it failed")
    before = versions.history().entries[-2]
    assert (before.action, before.left, before.why) == ("activate", None, None)


def test_publishing_removes_leftovers_of_a_killed_publisher(versions: ModelVersions) -> None:
    (versions.folder / ".publishing-dead").mkdir()
    (versions.folder / ".publishing-dead" / "half").write_text("of a version")
    with versions._staging_folder() as living:
        publish(Store(versions.folder.parent), seed=9)
        assert living.is_dir()
    assert not [path for path in versions.folder.iterdir() if path.name.startswith(".publishing")]


def test_before_activation_can_prevent_an_activation(versions: ModelVersions) -> None:
    live = versions.live()
    published = publish(Store(versions.folder.parent), seed=9)

    def fail() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        versions.activate(published, before_activation=fail)
    assert (versions.live(), versions.history().entries[-1].version) == (live, live)


def test_a_signal_after_the_staging_folder_is_created_leaves_nothing(versions: ModelVersions) -> None:
    before = {path.name for path in versions.folder.iterdir()}

    class InterruptedPath(PosixPath):
        def mkdir(self, *args: Any, **kwargs: Any) -> None:
            super().mkdir(*args, **kwargs)
            raise KeyboardInterrupt

    interrupted = ModelVersions(InterruptedPath(versions.folder))
    with pytest.raises(KeyboardInterrupt), interrupted._staging_folder():
        pytest.fail("it was interrupted")
    assert {path.name for path in versions.folder.iterdir()} == before | {".lock"}


def test_stray_files_are_neither_versions_nor_models(versions: ModelVersions) -> None:
    (versions.folder / "notes").mkdir()
    (versions.folder / "007").mkdir()
    (versions.folder.parent / ".cache").mkdir()
    (versions.folder.parent / "lost+found").mkdir()
    (versions.folder.parent / "empty").mkdir()
    (versions.folder.parent / "link").symlink_to(versions.folder)
    (versions.folder.parent / "readme").touch()
    assert versions.versions() == [1, 2]
    assert Store(versions.folder.parent).models() == ["demo"]


def test_other_users_can_read_published_files(versions: ModelVersions) -> None:
    for path in (versions.folder / "1").rglob("*"):
        assert path.stat().st_mode & 0o044 == 0o044, path


def test_open_follows_a_change_of_the_live_version(versions: ModelVersions) -> None:
    """CURRENT is read, then another version goes live and the first is pruned, then it is opened."""
    answers = iter([7, 2, 2])

    class Changing(ModelVersions):
        def live(self) -> int:
            return next(answers)

    with Changing(versions.folder).open() as snapshot:
        assert snapshot.folder == Path(versions.folder / "2")
