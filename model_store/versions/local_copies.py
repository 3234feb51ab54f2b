"""Copies of a model's versions on a local disk, for a store on a file system that may stall.

<folder>/<model>/<snapshot id>/    a copy, complete and verified
<folder>/<model>/.lock             held while a copy is made: the processes of a machine make it once and share it
<folder>/<model>/.publishing-*     a copy being made, or left by a killed process
"""

from __future__ import annotations

import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from model_store.errors import LocalCopyError, SnapshotError, StoreError, StoreUnavailable, UnknownVersion
from model_store.format.layout import MANIFEST
from model_store.snapshot import FOLDERS, Snapshot
from model_store.versions.durable import make_folder, sync, sync_tree
from model_store.versions.leftovers import LOCK, PUBLISHING, REMOVING, remove_leftovers, remove_unless_open
from model_store.versions.locks import exclusive
from model_store.versions.model_versions import ModelVersions

COPY_SECONDS = 3600.0
"""Longest wait while another process of this machine makes a copy."""


class LocalCopies:
    """Any number of processes may use the same folder. A copy that a process has open is not removed."""

    def __init__(self, folder: Path, versions: ModelVersions) -> None:
        self._versions = versions
        self.folder = folder / versions.name

    def open(self, version: int) -> Snapshot:
        """Opens the copy of a version with every check. Makes the copy if there is none, or if it is damaged.

        Making a copy first removes the copies of versions that are neither live nor the roll-back target.

        Raises:
            LocalCopyError: there is no valid copy, and none could be made; the version in the store may be valid.
            UnknownVersion, SnapshotError, StoreUnavailable: as `ModelVersions.manifest` raises them.
        """
        target = self.folder / self._versions.manifest(version).snapshot
        try:
            make_folder(self.folder)
            if (copy := _open_valid(target)) is not None:
                return copy
            with exclusive(self.folder / LOCK, COPY_SECONDS):
                if (copy := _open_valid(target)) is not None:  # another process has made it meanwhile
                    return copy
                self._make(version, target)
                return Snapshot.open(target)
        except OSError as error:
            raise LocalCopyError(f"the local copy cannot be written ({error.strerror or error})") from error
        except (SnapshotError, StoreUnavailable) as error:
            raise LocalCopyError(f"the local copy cannot be used ({error})") from error

    def _make(self, version: int, target: Path) -> None:
        """The caller holds the lock."""
        remove_leftovers(self.folder)
        if target.exists():  # damaged; processes that have it open keep their memory maps
            hidden = target.rename(target.with_name(f"{REMOVING}{secrets.token_hex(6)}"))
            shutil.rmtree(hidden, ignore_errors=True)
        self._remove_unneeded(target)
        with self._versions.open(version, verify="sizes") as source:  # `prune` cannot remove it during the copy
            self._require_space(sum(entry.size for entry in source.manifest.files.values()))
            staging = self.folder / f"{PUBLISHING}{secrets.token_hex(6)}"
            try:
                for name in ("", *FOLDERS):
                    (staging / name).mkdir()
                for name in (*source.manifest.files, MANIFEST):
                    shutil.copyfile(source.folder / name, staging / name)
                sync_tree(staging)
                staging.rename(target)
                sync(self.folder)
            except BaseException:
                shutil.rmtree(staging, ignore_errors=True)
                raise

    def _require_space(self, needed: int) -> None:
        if (free := shutil.disk_usage(self.folder).free) < needed:
            raise LocalCopyError(f"the local copy needs {needed:,} bytes, and its file system has {free:,} free")

    def _remove_unneeded(self, target: Path) -> None:
        """Keeps everything if the store does not say which versions are needed."""
        needed = {target.name}
        with suppress(StoreError):
            live = self._versions.live()
            for version in (live, *self._versions.history().earlier(live)[:1]):
                if version is not None:
                    with suppress(UnknownVersion):
                        needed.add(self._versions.manifest(version).snapshot)
            for path in self.folder.iterdir():
                if path.name not in needed and not path.name.startswith("."):
                    remove_unless_open(path)


def _open_valid(target: Path) -> Snapshot | None:
    """None if there is no copy, or a damaged one."""
    try:
        return Snapshot.open(target)
    except (UnknownVersion, SnapshotError):
        return None
