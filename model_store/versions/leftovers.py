"""What a process that dies leaves beside the versions of a model, and how it is told from what a living one is writing."""

from __future__ import annotations

import shutil
from pathlib import Path

from model_store.versions.locks import exclusive_unless_held

CURRENT, HISTORY, LOCK = "CURRENT", "HISTORY", ".lock"
PUBLISHING, REMOVING = ".publishing-", ".removing-"


def lock_of(staging: Path) -> Path:
    return staging.with_name(f"{staging.name}{LOCK}")


def remove_leftovers(folder: Path) -> int:
    """Removes what dead processes left, and returns how much of it there was; the caller holds the model's lock."""
    return sum(_remove(path) for path in _found(folder))


def _found(folder: Path) -> list[Path]:
    """What publishing, pruning and going live hide here while they work; nothing else that begins with a dot."""
    ours = (PUBLISHING, REMOVING, f".{CURRENT}-", f".{HISTORY}-")
    found = (path for path in folder.iterdir() if path.name.startswith(ours))
    return sorted({path.with_name(path.name.removesuffix(LOCK)) for path in found})


def _remove(path: Path) -> bool:
    """A publisher holds its lock as long as it lives."""
    lock = lock_of(path)
    with exclusive_unless_held(lock) as ours:
        if lock.exists() and not ours:
            return False
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        lock.unlink(missing_ok=True)
    return True
