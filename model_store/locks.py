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
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        # To write: over NFS an exclusive lock needs it. Elsewhere it need not be our own file.
        handle = os.open(path, os.O_RDWR | flags)
    except PermissionError:
        handle = os.open(path, os.O_RDONLY | flags)
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

    def read(self, limit: int) -> bytes:
        """The beginning of the very file that is held."""
        if self._handle is None:
            raise ValueError("the lock was released")
        parts, place = [], 0
        while place < limit and (part := os.pread(self._handle, min(limit - place, 1 << 20), place)):
            parts.append(part)
            place += len(part)
        return b"".join(parts)

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
