"""Locks that the kernel gives back when their holder dies, however it dies (flock)."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Waits for, and holds, the lock of this file, which is made if need be."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def exclusive_unless_held(path: Path) -> Iterator[bool]:
    """Yields whether the lock of this file could be had at once; it is held until the block ends. False for no such file."""
    try:
        # To write: over NFS an exclusive lock needs it.
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        yield False
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)


class SharedLock:
    """A reader's hold on an open file, until `release`. Any number of readers; no writer meanwhile."""

    def __init__(self, handle: int) -> None:
        """Takes over the file descriptor."""
        self._handle: int | None = handle
        try:
            fcntl.flock(handle, fcntl.LOCK_SH)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
