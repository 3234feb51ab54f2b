"""Hidden files and folders beside the versions: versions being written or removed, and leftovers of killed processes."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from contextlib import nullcontext
from pathlib import Path

from model_store.format.layout import MANIFEST
from model_store.versions.locks import exclusive_unless_held

CURRENT, HISTORY, LOCK = "CURRENT", "HISTORY", ".lock"
PUBLISHING, REMOVING = ".publishing-", ".removing-"


def lock_of(staging: Path) -> Path:
    """Returns the lock file that a publisher holds while it writes this folder."""
    return staging.with_name(f"{staging.name}{LOCK}")


def remove_leftovers(folder: Path) -> int:
    """Removes what killed processes left in a model's folder, and returns the count. The caller holds the model's lock."""
    prefixes = (PUBLISHING, REMOVING, f".{CURRENT}-", f".{HISTORY}-")
    hidden = (path for path in folder.iterdir() if path.name.startswith(prefixes))
    return sum(map(_remove_unless_in_use, sorted({path.with_name(path.name.removesuffix(LOCK)) for path in hidden})))


def remove_unless_open(folder: Path) -> bool:
    """Hides the folder of a version by a rename, then deletes it; returns False if a reader holds its lock."""
    manifest = folder / MANIFEST
    # Without a regular manifest, no reader can hold a lock.
    lockable = os.path.lexists(manifest) and stat.S_ISREG(manifest.lstat().st_mode)
    with exclusive_unless_held(manifest) if lockable else nullcontext(True) as lock_was_free:
        if not lock_was_free:
            return False
        hidden = folder.with_name(f"{REMOVING}{secrets.token_hex(6)}")
        folder.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)
    return True


def _remove_unless_in_use(path: Path) -> bool:
    lock = lock_of(path)
    with exclusive_unless_held(lock) as lock_was_free:
        if lock.exists() and not lock_was_free:
            return False  # a living publisher holds it
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        lock.unlink(missing_ok=True)
    return True
