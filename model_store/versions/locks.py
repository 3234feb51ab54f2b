"""File locks (flock). The kernel releases a lock when its holder dies. Every wait for a lock has a time limit."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from model_store.errors import StoreBusy

READER_SECONDS = 5.0
"""Default time limit for a shared lock: pruning holds the exclusive lock only during a rename."""
WRITER_SECONDS = 600.0
"""Default time limit for an exclusive lock: roll-back and pruning hold it while they verify or remove large versions."""
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.001, 0.05


@contextmanager
def exclusive(path: Path, seconds: float = WRITER_SECONDS) -> Iterator[None]:
    """Holds the exclusive lock of a file, which is created if it does not exist.

    Raises:
        StoreBusy: another holder did not release the lock within `seconds`.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        _lock(handle, fcntl.LOCK_EX, path, seconds)
        yield
    finally:
        os.close(handle)


@contextmanager
def exclusive_unless_held(path: Path) -> Iterator[bool]:
    """Yields True and holds the lock if it is free; yields False if it is held or the file does not exist."""
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        # NFS grants an exclusive lock only on a file that is open for writing.
        handle = os.open(path, os.O_RDWR | flags)
    except PermissionError:
        handle = os.open(path, os.O_RDONLY | flags)
    except FileNotFoundError:
        yield False
        return
    try:
        yield _try_lock(handle, fcntl.LOCK_EX)
    finally:
        os.close(handle)


class SharedLock:
    """A shared lock on an open file, held until `release`. Many readers can hold it at once; it excludes writers."""

    def __init__(self, handle: int, path: Path, seconds: float = READER_SECONDS) -> None:
        """Takes ownership of `handle`, the descriptor of `path`. Raises StoreBusy as `exclusive` does."""
        self._handle: int | None = handle
        try:
            _lock(handle, fcntl.LOCK_SH, path, seconds)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _lock(handle: int, operation: int, path: Path, seconds: float) -> None:
    """Polls, because flock has no time limit of its own."""
    end, pause = time.monotonic() + seconds, MIN_PAUSE_SECONDS
    while not _try_lock(handle, operation):
        if time.monotonic() >= end:
            name = f"{path.parent.name}/{path.name}"
            raise StoreBusy(f"the lock {name} was not free for {seconds:g} s: other processes held it")
        time.sleep(pause)
        pause = min(2 * pause, MAX_PAUSE_SECONDS)


def _try_lock(handle: int, operation: int) -> bool:
    try:
        fcntl.flock(handle, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
