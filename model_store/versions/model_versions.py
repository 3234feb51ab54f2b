"""The versions of one model, and which one is live: a folder per version, and CURRENT.

<store>/<model>/CURRENT            the live version's number
<store>/<model>/HISTORY            what was live before (`history`)
<store>/<model>/1, 2, 3 ...        snapshots, immutable
<store>/<model>/.publishing-*      being written, or left by a process that died; `prune` removes the latter
<store>/<model>/.removing-*        being removed
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from model_store.errors import LiveVersionChanged, NothingToRollBackTo, ProbeError, SnapshotError, UnknownVersion
from model_store.format.layout import MANIFEST, REPORT
from model_store.format.manifest import Manifest
from model_store.format.names import checked_version, is_version
from model_store.snapshot import Snapshot, Verify, read_listed, read_manifest
from model_store.versions import durable
from model_store.versions.history import Action, Event, History
from model_store.versions.leftovers import CURRENT, LOCK, PUBLISHING, REMOVING, lock_of, remove_leftovers
from model_store.versions.live_version import LiveLog, LiveState
from model_store.versions.locks import READER_SECONDS, WRITER_SECONDS, exclusive, exclusive_unless_held

if TYPE_CHECKING:
    from model_store.publish.writer import Contents


@dataclass(frozen=True)
class Pruned:
    removed: list[int]
    leftovers: int
    """Folders that died publishers or pruners had left."""
    in_use: list[int]
    """Old versions that stay because somebody reads them."""


class ModelVersions:
    """The versions of one model. Every method may be called by any number of processes at once."""

    def __init__(self, folder: Path, lock_seconds: float = WRITER_SECONDS) -> None:
        """`lock_seconds`: how long a method that changes the store waits for other processes; then it raises StoreBusy."""
        self.folder, self.name, self.lock_seconds = folder, folder.name, lock_seconds
        self._log = LiveLog(folder)

    def versions(self) -> list[int]:
        return sorted(int(path.name) for path in self.folder.iterdir() if is_version(path.name) and is_real_folder(path))

    def live(self) -> int | None:
        """The live version's number.

        Raises:
            SnapshotError: CURRENT is damaged. Activating any version mends it.
        """
        return self._log.live()

    def history(self) -> History:
        """What was live, in order; the last event is the present state. Lines that cannot be understood are counted.

        Raises:
            SnapshotError: CURRENT is damaged. Activating any version mends it.
        """
        return self._log.history()

    def state(self) -> LiveState:
        """The live version and the history as far as they can be read, and what is damaged. Raises nothing for damage."""
        return self._log.state()

    def manifest(self, version: int | str) -> Manifest:
        """The manifest alone, its own hash checked, its files not."""
        number = checked_version(version)
        with self._saying_what_is_there():
            return self._own(read_manifest(self.folder / str(number)))

    def report(self, version: int | str) -> bytes | None:
        """The training report, verified; None where the version has none. Reads the manifest and this file only."""
        manifest = self.manifest(version)
        return read_listed(self.folder / str(version), manifest, REPORT) if REPORT in manifest.files else None

    def open(self, version: int | str | None = None, verify: Verify = "full") -> Snapshot:
        """Opens a version, by default the live one.

        Raises:
            UnknownVersion: no such version, or none is live.
            SnapshotError: its content is wrong, and why.
            StoreUnavailable: it cannot be read now.
        """
        if version is not None:
            return self._opened(checked_version(version), verify)
        while True:
            live = self._live_or_fail()
            try:
                return self._opened(live, verify)
            except UnknownVersion:
                # Between our two steps another version may have gone live, and this one been pruned.
                if self.live() == live:
                    raise SnapshotError(CURRENT, f"names version {live}, which is not there") from None

    def verify(self, version: int | str | None = None) -> dict[str, float]:
        """Every check of opening, then the probes: by name, how far each answer is from the full-graph forward's."""
        with self.open(version) as snapshot:
            return snapshot.replay()

    def publish(self, contents: Contents, **options: Any) -> int:
        from model_store.publish.writer import write_snapshot  # needs torch, which readers do without

        with self._staging() as staging:
            write_snapshot(staging, self.name, contents, **options)
            durable.sync_tree(staging)
            with self._exclusive():
                remove_leftovers(self.folder)  # of publishers that were killed: each may be as large as a version
                taken = [int(path.name) for path in self.folder.iterdir() if is_version(path.name)]
                version = checked_version(max(taken, default=0) + 1)
                staging.rename(self.folder / str(version))
                durable.sync(self.folder)
        return version

    def activate(
        self,
        version: int | str,
        *,
        instead_of: int | Literal["any"] | None = "any",
        last_look: Callable[[], None] = lambda: None,
    ) -> None:
        """Verifies a version, replays its probes, and makes it the live one.

        Args:
            instead_of: the version that must still be live, for whoever has compared the two; None: none may be.
            last_look: called right before it goes live, with the store locked; what it raises keeps it from that.

        Raises:
            LiveVersionChanged: `instead_of` is not live any more.
        """
        number = checked_version(version)
        with self.open(number) as snapshot:  # held until it is live: nobody can prune it meanwhile
            snapshot.replay()
            with self._exclusive():
                history = self._log.mend()
                if instead_of != "any":
                    self._need_live(instead_of)
                last_look()
                if self.live() != number:
                    self._make_live(history, "activate", number)

    def rollback(self, only_from: int | None = None, why: str | None = None) -> int:
        """Makes the version live that was live before this one and is still there; returns its number.

        Versions on the way that are gone or damaged are passed over. One that cannot be read now is not: nothing changes.

        Args:
            only_from: the version to be left. Of many that find it bad at once, one rolls back.
            why: what is wrong with it, for the history.

        Raises:
            NothingToRollBackTo: there is none.
            LiveVersionChanged: `only_from` is not live any more.
            StoreUnavailable: a version on the way, or the store, cannot be used now.
        """
        with self._exclusive():
            live = self._live_or_fail()
            if only_from is not None:
                self._need_live(only_from)
            history = self._log.mend()
            there = set(self.versions())
            reasons = []
            for earlier in history.earlier(live):
                if earlier not in there:
                    reasons.append(f"{earlier} is gone")
                    continue
                try:
                    self.verify(earlier)
                except (SnapshotError, ProbeError) as error:
                    reasons.append(f"{earlier} is damaged ({error})")
                    continue
                self._make_live(history, "rollback", earlier, live, why)
                return earlier
        why = "; ".join(reasons) or "no other version was live before"
        raise NothingToRollBackTo(f"{self.name} stays at version {live}: {why}")

    def prune(self, keep: int, only: Collection[int] | None = None) -> Pruned:
        """Removes old versions and what died processes left.

        The newest `keep` stay, and with them the live version, the one that a roll-back would reach, and any that is read.
        If `only` is given, no other versions are removed.
        """
        if keep < 1:
            raise ValueError(f"keep is {keep}, expected at least 1: the newest version's number must not be given again")
        with self._exclusive():
            leftovers = remove_leftovers(self.folder)
            versions, live = self.versions(), self.live()
            way_back = [version for version in self.history().earlier(live) if version in versions]
            kept = {*versions[-keep:], live, *way_back[:1]}
            old = [version for version in versions if version not in kept and (only is None or version in only)]
            removed = [version for version in old if self._remove(version)]
        return Pruned(removed, leftovers, [version for version in old if version not in removed])

    @contextmanager
    def _staging(self) -> Iterator[Path]:
        """A folder to write into. Its lock lies beside it, so that the folder holds nothing but the snapshot."""
        staging = self.folder / f"{PUBLISHING}{secrets.token_hex(6)}"
        lock = lock_of(staging)
        with ExitStack() as held:
            held.callback(lock.unlink, missing_ok=True)
            with self._exclusive():  # so that `prune` never meets the folder before its lock is held
                held.enter_context(exclusive(lock))
                held.callback(shutil.rmtree, staging, ignore_errors=True)  # first: a signal may come right after mkdir
                staging.mkdir()
            yield staging

    def _make_live(
        self, history: History, action: Action, version: int, left: int | None = None, why: str | None = None
    ) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._log.make_live(history, Event(action, version, now, left, why))

    def _exclusive(self) -> AbstractContextManager[None]:
        """The model's lock, held while a version appears, goes live or is removed. Raises StoreBusy."""
        return exclusive(self.folder / LOCK, self.lock_seconds)

    def _opened(self, version: int, verify: Verify) -> Snapshot:
        with self._saying_what_is_there():
            snapshot = Snapshot.open(self.folder / str(version), verify, min(READER_SECONDS, self.lock_seconds))
        try:
            self._own(snapshot.manifest)
        except SnapshotError:
            snapshot.close()
            raise
        return snapshot

    @contextmanager
    def _saying_what_is_there(self) -> Iterator[None]:
        """A snapshot knows its own folder only; which versions there are instead is ours to say."""
        try:
            yield
        except UnknownVersion as error:
            there = self.versions() if self.folder.is_dir() else []
            raise UnknownVersion(f"{error} (there: {', '.join(map(str, there)) or 'none'})") from None

    def _own(self, manifest: Manifest) -> Manifest:
        if manifest.model != self.name:
            raise SnapshotError(MANIFEST, f"is of model {manifest.model}, expected {self.name}")
        return manifest

    def _remove(self, version: int) -> bool:
        """Out of sight at once, then off the disk; not while a reader holds it. Without a manifest there is no reader."""
        folder = self.folder / str(version)
        readable = stat.S_ISREG((folder / MANIFEST).lstat().st_mode) if os.path.lexists(folder / MANIFEST) else False
        with exclusive_unless_held(folder / MANIFEST) if readable else nullcontext(True) as ours:
            if not ours:
                return False
            hidden = self.folder / f"{REMOVING}{secrets.token_hex(6)}"
            folder.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)
        return True

    def _need_live(self, version: int | None) -> None:
        """The caller holds the lock."""
        if (live := self.live()) != version:
            raise LiveVersionChanged(f"version {live or 'none'} of {self.name} is live by now, not {version or 'none'}")

    def _live_or_fail(self) -> int:
        live = self.live()
        if live is None:
            raise UnknownVersion(f"no version of {self.name} is live; activate one")
        return live


def is_real_folder(path: Path) -> bool:
    """Not a link, which could lead out of the store."""
    return path.is_dir() and not path.is_symlink()
