"""File locks (flock) that the kernel releases when their holder dies. Every wait for a lock has a limit."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from model_store.errors import StoreBusy

READER_SECONDS = 5.0
"""Default limit for a shared lock: pruning holds the exclusive one for the duration of a rename."""
WRITER_SECONDS = 600.0
"""Default limit for an exclusive lock: a roll-back and pruning hold it while they verify or remove large versions."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.001, 0.05


@contextmanager
def exclusive(path: Path, seconds: float = WRITER_SECONDS) -> Iterator[None]:
    """Holds the exclusive lock of this file, which is created if it does not exist.

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
    """Yields whether the lock of this file was free; the block then holds it. False where the file does not exist."""
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        # To write: over NFS an exclusive lock needs it. Elsewhere the file may belong to another user.
        handle = os.open(path, os.O_RDWR | flags)
    except PermissionError:
        handle = os.open(path, os.O_RDONLY | flags)
    except FileNotFoundError:
        yield False
        return
    try:
        yield _locks_now(handle, fcntl.LOCK_EX)
    finally:
        os.close(handle)


class SharedLock:
    """A shared lock on an open file, until `release`. Any number of readers hold it; no writer meanwhile."""

    def __init__(self, handle: int, path: Path, seconds: float = READER_SECONDS) -> None:
        """Takes over the file descriptor of `path`. Raises StoreBusy as `exclusive` does."""
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
    """Polls: flock itself has no time limit."""
    end, pause = time.monotonic() + seconds, FIRST_PAUSE_SECONDS
    while not _locks_now(handle, operation):
        if time.monotonic() >= end:
            name = f"{path.parent.name}/{path.name}"
            raise StoreBusy(f"the lock {name} is held by another process for more than {seconds:g} s")
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def _locks_now(handle: int, operation: int) -> bool:
    try:
        fcntl.flock(handle, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
