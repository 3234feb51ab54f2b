"""The versions of one model, and which of them is live.

<store>/<model>/1, 2, 3 ...        snapshots, immutable
<store>/<model>/CURRENT            the number of the live version
<store>/<model>/HISTORY            earlier live versions (`activation_log`)
<store>/<model>/graph_log/         the changes of each graph (`graph_log`)
<store>/<model>/.lock              held while a version appears, goes live or is removed
<store>/<model>/.publishing-*      a version being written, or left by a killed process
<store>/<model>/.removing-*        a version being removed, or left by a killed process
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from model_store.errors import (
    LiveVersionChanged,
    NothingToRollBackTo,
    ProbeError,
    RecordsPruned,
    SnapshotError,
    StoreError,
    UnknownVersion,
)
from model_store.format.layout import MANIFEST, REPORT, checked_version, is_version
from model_store.format.manifest import Manifest
from model_store.logged_changes import LoggedChanges
from model_store.snapshot import Snapshot, Verify, read_listed_file, read_manifest
from model_store.versions.activation_log import ActivationLog, ActivationState, History, HistoryEntry
from model_store.versions.durable import sync, sync_tree
from model_store.versions.leftovers import CURRENT, LOCK, PUBLISHING, lock_of, remove_leftovers, remove_unless_open
from model_store.versions.locks import READER_SECONDS, WRITER_SECONDS, exclusive

if TYPE_CHECKING:
    from model_store.publish.writer import Contents


@dataclass(frozen=True)
class PruneResult:
    """The effect of `prune` or `remove`."""

    removed: list[int]
    """The versions that were removed."""
    leftovers: int
    """The number of hidden files and folders that killed processes had left."""
    in_use: list[int]
    """Old versions that were kept because a process has them open."""


class ModelVersions:
    """The versions of one model. Any number of processes may call any method at the same time."""

    def __init__(self, folder: Path, lock_seconds: float = WRITER_SECONDS, redis: dict[str, Any] | None = None) -> None:
        """
        Args:
            lock_seconds: time limit of a wait for the model's lock; a method that needs it then raises StoreBusy.
            redis: if the changes of the graph are logged in Redis, its address (`LogAddress.redis`).
        """
        self.folder, self.name, self.lock_seconds = folder, folder.name, lock_seconds
        self._changes = LoggedChanges(folder, redis)
        self._log = ActivationLog(folder)

    def versions(self) -> list[int]:
        """Returns the numbers of all versions in ascending order."""
        return sorted(int(path.name) for path in self.folder.iterdir() if is_version(path.name) and is_real_folder(path))

    def live(self) -> int | None:
        """Returns the number of the live version. Raises SnapshotError if CURRENT is damaged; any activation repairs it."""
        return self._log.live()

    def history(self) -> History:
        """Returns the activations and roll-backs in order; the last entry is the current state. Raises as `live` does."""
        return self._log.history()

    def state(self) -> ActivationState:
        """Returns the live version and the history as far as they can be read, and a description of any damage."""
        return self._log.state()

    def manifest(self, version: int | str) -> Manifest:
        """Returns the manifest after checking its own hash. Does not check the files that it lists."""
        number = checked_version(version)
        with self._listing_versions_in_errors():
            return self._check_model(read_manifest(self.folder / str(number)))

    def report(self, version: int | str) -> bytes | None:
        """Returns the training report after checking its hash; None if the version has no report."""
        manifest = self.manifest(version)
        return read_listed_file(self.folder / str(version), manifest, REPORT) if REPORT in manifest.files else None

    def open(self, version: int | str | None = None, verify: Verify = "full") -> Snapshot:
        """Opens a version, by default the live one.

        Raises:
            UnknownVersion: the version does not exist, or no version is live.
            SnapshotError: the content is wrong.
            StoreUnavailable: the version cannot be read now.
        """
        if version is not None:
            return self._open(checked_version(version), verify)
        while True:
            live = self._require_live()
            try:
                return self._open(live, verify)
            except UnknownVersion:
                # Another process may have activated another version and pruned this one since `live` was read.
                if self.live() == live:
                    raise SnapshotError(CURRENT, f"names version {live}, which does not exist") from None

    def verify(self, version: int | str | None = None) -> dict[str, float]:
        """Opens a version with every check and replays its probes. Returns the error of each probe by name."""
        with self.open(version) as snapshot:
            return snapshot.replay()

    def publish(self, contents: Contents, **options: Any) -> int:
        """Writes a new version and returns its number. `options` are those of `write_snapshot`."""
        from model_store.publish.writer import write_snapshot  # loads torch, which readers do not need

        with self._staging_folder() as staging:
            write_snapshot(staging, self.name, contents, **options)
            sync_tree(staging)
            with self._model_lock():
                remove_leftovers(self.folder)  # each folder of a killed publisher may be as large as a version
                taken = [int(path.name) for path in self.folder.iterdir() if is_version(path.name)]
                version = checked_version(max(taken, default=0) + 1)
                staging.rename(self.folder / str(version))
                sync(self.folder)
        return version

    def activate(
        self,
        version: int | str,
        *,
        expected_live: int | Literal["any"] | None = "any",
        before_activation: Callable[[], None] = lambda: None,
        discard_changes: bool = False,
    ) -> None:
        """Verifies a version, replays its probes, and makes it the live version.

        Args:
            expected_live: the activation fails if another version is live. None: no version may be live. "any": no check.
            before_activation: called under the model's lock; an exception that it raises prevents the activation.
            discard_changes: also activate a version over another graph. The changes of the live graph are then no longer
                served, until a version over that graph is activated again.

        Raises:
            LiveVersionChanged: the live version is not `expected_live`.
            ChangesMissing: the version is over another graph, and the live graph has changes.
            RecordsPruned: changes after those that the version contains are not in the log any more.
            UnknownVersion: the version does not exist.
            SnapshotError: the content of the version is wrong.
            ProbeError: a probe fails.
            StoreUnavailable: the version cannot be read now, or another process holds a lock (StoreBusy).
        """
        number = checked_version(version)
        with self.open(number) as snapshot:  # stays open until the version is live: `prune` cannot remove it
            snapshot.replay()
            with self._model_lock():
                history = self._log.repair()
                if expected_live != "any":
                    self._require_still_live(expected_live)
                self._changes.require_replay(number, snapshot.manifest)
                if not discard_changes:
                    self.require_same_graph(snapshot.manifest)
                before_activation()
                if self.live() != number:
                    self._log.append(history, HistoryEntry("activate", number, _now()))

    def require_same_graph(self, new: Manifest | str) -> None:
        """Raises ChangesMissing if the live graph has changes, and `new` (a manifest or an id) has another graph."""
        try:
            live = self.live()
            manifest = None if live is None else self.manifest(live)
        except (SnapshotError, UnknownVersion):
            return  # the activation repairs CURRENT; the log of the graph stays
        if manifest is not None:
            self._changes.require_same_graph(manifest, new)

    def rollback(self, only_from: int | None = None, why: str | None = None, discard_changes: bool = False) -> int:
        """Makes the previous live version live again and returns its number.

        Skips earlier versions that are removed or damaged, or for which the log lacks changes. Changes nothing if an earlier
        version cannot be read now.

        Args:
            only_from: roll back only if this version is live, so that only one of several processes rolls back.
            why: the reason, for the history.
            discard_changes: as for `activate`.

        Raises:
            NothingToRollBackTo: no earlier live version is left.
            ChangesMissing: the earlier version is over another graph, and the live graph has changes.
            LiveVersionChanged: the live version is not `only_from`.
            UnknownVersion: no version is live.
            SnapshotError: CURRENT is damaged.
            StoreUnavailable: the store or an earlier version cannot be read now, or a lock is held (StoreBusy).
        """
        with self._model_lock():
            live = self._require_live()
            if only_from is not None:
                self._require_still_live(only_from)
            history = self._log.repair()
            versions, skipped = set(self.versions()), []
            for earlier in history.earlier(live):
                if earlier not in versions:
                    skipped.append(f"{earlier} was removed")
                    continue
                try:
                    self.verify(earlier)
                    self._changes.require_replay(earlier, self.manifest(earlier))
                except (SnapshotError, ProbeError) as error:
                    skipped.append(f"{earlier} is damaged ({error})")
                    continue
                except RecordsPruned as error:
                    skipped.append(str(error))
                    continue
                if not discard_changes:
                    self.require_same_graph(self.manifest(earlier))
                self._log.append(history, HistoryEntry("rollback", earlier, _now(), live, why))
                return earlier
        reason = "; ".join(skipped) or "no other version was live before"
        raise NothingToRollBackTo(f"{self.name} stays at version {live}: {reason}")

    def prune(self, keep: int, only: Collection[int] | None = None) -> PruneResult:
        """Removes old versions, and hidden files and folders of killed processes.

        Keeps the newest `keep` versions, the live version, the version that a roll-back would reach, and open versions.
        If `only` is given, no other versions are removed.
        """
        if keep < 1:
            raise ValueError(f"keep is {keep}, expected at least 1: the number of the newest version must not be reused")
        with self._model_lock():
            leftovers = remove_leftovers(self.folder)
            versions = self.versions()
            kept = {*versions[-keep:], *self._reasons_to_keep()}
            old = [version for version in versions if version not in kept and (only is None or version in only)]
            removed = self._remove_unless_open(old)
        return PruneResult(removed, leftovers, [version for version in old if version not in removed])

    def remove(self, versions: Collection[int]) -> PruneResult:
        """Removes these versions, except those that a process has open. Removes none if one of them must stay.

        Raises:
            StoreError: a version is live, the roll-back target or the newest. The error has the reason.
            UnknownVersion: a version does not exist.
        """
        with self._model_lock():
            present, reasons = self.versions(), self._reasons_to_keep()
            for version in versions:
                if version not in present:
                    with self._listing_versions_in_errors():
                        raise UnknownVersion(f"there is no version {version} of {self.name}")
                if version in reasons:
                    raise StoreError(f"version {version} of {self.name} cannot be removed: {reasons[version]}")
            removed = self._remove_unless_open(sorted({*versions}))
        return PruneResult(removed, 0, sorted({*versions} - {*removed}))

    def _remove_unless_open(self, versions: list[int]) -> list[int]:
        """Removes and returns the versions that no process has open. Also removes the changes that only they needed."""
        try:
            manifests = {version: self.manifest(version) for version in self.versions()}
        except StoreError:
            manifests = {}  # a version is damaged: which changes it needs is unknown, so no log is pruned
        removed = [version for version in versions if remove_unless_open(self.folder / str(version))]
        self._changes.prune(manifests, removed)
        return removed

    def _reasons_to_keep(self) -> dict[int, str]:
        """Returns the versions that must not be removed, with the reasons. The caller holds the model's lock."""
        versions, live = self.versions(), self.live()
        targets = [version for version in self.history().earlier(live) if version in versions]
        newest = dict.fromkeys(versions[-1:], "it is the newest, and its number would be used again")
        rollback = dict.fromkeys(targets[:1], "a roll-back would make it live")
        return newest | rollback | ({} if live is None else {live: "it is live"})

    @contextmanager
    def _staging_folder(self) -> Iterator[Path]:
        """Yields a folder to write a version into. Its lock file lies beside it: the folder holds only the snapshot."""
        staging = self.folder / f"{PUBLISHING}{secrets.token_hex(6)}"
        lock = lock_of(staging)
        with ExitStack() as stack:
            stack.callback(lock.unlink, missing_ok=True)
            with self._model_lock():  # `prune` never sees the folder before its lock is held
                stack.enter_context(exclusive(lock))
                # Registered before mkdir, so that a signal right after mkdir does not leave the folder behind.
                stack.callback(shutil.rmtree, staging, ignore_errors=True)
                staging.mkdir()
            yield staging

    def _model_lock(self) -> AbstractContextManager[None]:
        """Returns the lock that is held while a version appears, goes live or is removed. Raises StoreBusy."""
        return exclusive(self.folder / LOCK, self.lock_seconds)

    def _open(self, version: int, verify: Verify) -> Snapshot:
        with self._listing_versions_in_errors():
            snapshot = Snapshot.open(self.folder / str(version), verify, min(READER_SECONDS, self.lock_seconds))
        try:
            self._check_model(snapshot.manifest)
        except SnapshotError:
            snapshot.close()
            raise
        return snapshot

    @contextmanager
    def _listing_versions_in_errors(self) -> Iterator[None]:
        """Adds the existing versions to an UnknownVersion."""
        try:
            yield
        except UnknownVersion as error:
            versions = self.versions() if self.folder.is_dir() else []
            raise UnknownVersion(f"{error} (existing versions: {', '.join(map(str, versions)) or 'none'})") from None

    def _check_model(self, manifest: Manifest) -> Manifest:
        if manifest.model != self.name:
            raise SnapshotError(MANIFEST, f"belongs to model {manifest.model}, expected {self.name}")
        return manifest

    def _require_still_live(self, version: int | None) -> None:
        """Raises LiveVersionChanged if another version is live. The caller holds the model's lock."""
        if (live := self.live()) != version:
            reason = f"is {live or 'none'}, expected {version or 'none'}: another process changed it"
            raise LiveVersionChanged(f"the live version of {self.name} {reason}")

    def _require_live(self) -> int:
        live = self.live()
        if live is None:
            raise UnknownVersion(f"no version of {self.name} is live; activate one")
        return live


def is_real_folder(path: Path) -> bool:
    """False for a symbolic link, which could point outside the store."""
    return path.is_dir() and not path.is_symlink()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
