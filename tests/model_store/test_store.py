"""Publishing, going live, going back, and cleaning up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from model_store import ModelVersions, NothingToRollBackTo, SnapshotError, Store, UnknownModel, UnknownVersion
from tests.model_store.samples import publish


def four_versions(store: Store) -> ModelVersions:
    for seed in range(4):
        publish(store, seed)
    return store.model("demo")


def test_versions_count_up_and_nothing_is_live_unasked(store: Store) -> None:
    assert store.models() == []
    versions = four_versions(store)
    assert store.models() == ["demo"]
    assert versions.versions() == [1, 2, 3, 4]
    assert versions.live() is None
    with pytest.raises(UnknownVersion, match="no version of demo is live; activate one"):
        versions.open()
    with pytest.raises(UnknownModel, match=r"there is no model other in this store \(there: demo\)"):
        store.model("other")


def test_rolling_back_walks_down_what_was_live(store: Store) -> None:
    versions = four_versions(store)
    for version in (1, 3, 2):
        versions.activate(version)
    assert [versions.rollback(), versions.rollback()] == [3, 1]
    with pytest.raises(NothingToRollBackTo, match="demo stays at version 1: no other version was live before"):
        versions.rollback()
    versions.activate(4)
    assert versions.rollback() == 1
    log = [(event.action, event.version) for event in versions.history().events]
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
    assert len(versions.history().events) == 1


def test_rolling_back_passes_over_what_is_gone_or_damaged(store: Store) -> None:
    versions = four_versions(store)
    for version in (1, 2, 3, 4):
        versions.activate(version)
    (versions.folder / "2" / "weights.safetensors").write_bytes(b"")
    (versions.folder / "3").rename(versions.folder.parent / "gone")
    assert versions.rollback() == 1
    with pytest.raises(NothingToRollBackTo):
        versions.rollback()


def test_rolling_back_to_nothing_says_why(store: Store) -> None:
    versions = four_versions(store)
    versions.activate(1)
    versions.activate(2)
    (versions.folder / "1" / "weights.safetensors").write_bytes(b"")
    with pytest.raises(NothingToRollBackTo, match=r"1 is damaged \(weights.safetensors: is 0 bytes long"):
        versions.rollback()
    assert versions.live() == 2


def test_a_damaged_version_does_not_go_live(versions: ModelVersions) -> None:
    (versions.folder / "2" / "sums.safetensors").write_bytes(b"x")
    with pytest.raises(SnapshotError, match=r"sums.safetensors: is 1 bytes long"):
        versions.activate(2)
    assert versions.live() == 1


@pytest.mark.parametrize("action", ["activate", "rollback"])
def test_a_change_that_died_halfway_did_not_happen(versions: ModelVersions, action: str) -> None:
    """The log is written before CURRENT: here as after a death between the two."""
    versions.activate(2)
    log = versions.folder / "HISTORY"
    log.write_text(log.read_text() + json.dumps({"action": action, "version": 1, "at": "now"}) + "\n")
    assert [event.version for event in versions.history().events] == [1, 2]
    assert versions.rollback() == 1
    assert [event.action for event in versions.history().events] == ["activate", "activate", "rollback"]


def test_damage_to_current_and_history_is_named(versions: ModelVersions) -> None:
    (versions.folder / "HISTORY").write_text("{")
    with pytest.raises(SnapshotError, match="HISTORY: cannot be read"):
        versions.history()
    (versions.folder / "CURRENT").write_text("../2")
    with pytest.raises(SnapshotError, match=r"CURRENT: holds '../2', expected the number of a version"):
        versions.open()
    (versions.folder / "CURRENT").write_text("9\n")
    with pytest.raises(SnapshotError, match="CURRENT: names version 9, which is not there"):
        versions.open()


def test_pruning_keeps_the_newest_the_live_and_the_one_to_go_back_to(store: Store) -> None:
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


def test_a_version_that_is_read_is_not_pruned(store: Store) -> None:
    versions = four_versions(store)
    snapshot = versions.open(1)
    pruned = versions.prune(keep=1)
    assert (pruned.removed, pruned.in_use) == ([2, 3], [1])
    snapshot.close()
    assert versions.prune(keep=1).removed == [1]


def test_a_failed_opening_holds_nothing(store: Store) -> None:
    versions = four_versions(store)
    (versions.folder / "1" / "weights.safetensors").write_bytes(b"")
    with pytest.raises(SnapshotError):
        versions.open(1)
    assert 1 in versions.prune(keep=1).removed


def test_numbers_are_never_given_twice(store: Store) -> None:
    versions = four_versions(store)
    versions.prune(keep=1)
    assert publish(store, 9) == 5


def test_pruning_removes_what_the_dead_left_and_nothing_of_the_living(versions: ModelVersions) -> None:
    dead = versions.folder / ".publishing-dead"
    dead.mkdir()
    (dead / "states").mkdir()
    (versions.folder / ".publishing-dead.lock").touch()
    (versions.folder / ".publishing-early.lock").touch()
    (versions.folder / ".removing-dead").mkdir()
    (versions.folder / ".CURRENT-dead").touch()
    with versions._staging() as staging:
        assert versions.prune(keep=2).leftovers == 4
        assert staging.is_dir()
        hidden = {path.name for path in versions.folder.glob(".*")}
        assert hidden == {".lock", staging.name, f"{staging.name}.lock"}
    assert {path.name for path in versions.folder.glob(".*")} == {".lock"}


def test_stray_files_are_no_versions_and_no_models(versions: ModelVersions) -> None:
    (versions.folder / "notes").mkdir()
    (versions.folder / "007").mkdir()
    (versions.folder.parent / ".cache").mkdir()
    (versions.folder.parent / "readme").touch()
    assert versions.versions() == [1, 2]
    assert Store(versions.folder.parent).models() == ["demo"]


def test_other_users_may_read_what_is_published(versions: ModelVersions) -> None:
    for path in (versions.folder / "1").rglob("*"):
        assert path.stat().st_mode & 0o044 == 0o044, path


def test_the_live_version_is_opened_even_if_it_changes_meanwhile(
    versions: ModelVersions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CURRENT is read, then another version goes live and the first is pruned, then it is opened."""
    answers = iter([7, 2, 2])
    monkeypatch.setattr(ModelVersions, "live", lambda _self: next(answers))
    with versions.open() as snapshot:
        assert snapshot.folder == Path(versions.folder / "2")
