"""Reads one file of a version: an ordinary file that exists, and errors that say whether its content is to blame."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from model_store.errors import SnapshotError, StoreUnavailable, UnknownVersion

WRONG_KIND = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO})
"""What the system answers where something else lies in place of an ordinary file: that is wrong for every reader."""


@contextmanager
def blaming_the_system(name: str = "snapshot") -> Iterator[None]:
    """Turns an error of the operating system into StoreUnavailable, or into SnapshotError where it proves a wrong file."""
    try:
        yield
    except OSError as error:
        file = Path(os.fsdecode(error.filename)).name if isinstance(error.filename, str | bytes | os.PathLike) else name
        reason = f"cannot be read: {error.strerror or type(error).__name__}"
        if error.errno in WRONG_KIND:
            raise SnapshotError(file, reason) from error
        raise StoreUnavailable(f"{file}: {reason}") from error
    except MemoryError as error:
        raise StoreUnavailable(f"{name}: cannot be read: out of memory") from error


def open_ordinary(folder: Path, name: str) -> int:
    """A descriptor of an ordinary file in the folder of a version. The caller closes it.

    Raises:
        UnknownVersion: there is no such folder (any more).
        SnapshotError: the file is missing, or something else lies in its place.
        StoreUnavailable: the system refused to open it.
    """
    with blaming_the_system(name):
        try:
            if stat.S_ISLNK(folder.lstat().st_mode):
                raise SnapshotError(folder.name, "is a symbolic link, expected a folder")
            # Not blocking: opening a pipe would wait for its other end.
            handle = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            if folder.exists():
                raise SnapshotError(name, "is missing") from None
            raise UnknownVersion(f"there is no version {folder.name} of {folder.parent.name}") from None
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise SnapshotError(name, "is not an ordinary file")
        return handle


def read_open(handle: int, name: str, limit: int) -> bytes:
    """The first `limit` bytes of an open file. Raises StoreUnavailable."""
    parts, place = [], 0
    with blaming_the_system(name):
        while place < limit and (part := os.pread(handle, min(limit - place, 1 << 20), place)):
            parts.append(part)
            place += len(part)
    return b"".join(parts)


def read_ordinary(folder: Path, name: str, limit: int) -> bytes:
    """The first `limit` bytes of a file; needs no lock, because an open file stays readable. Raises as `open_ordinary`."""
    handle = open_ordinary(folder, name)
    try:
        return read_open(handle, name, limit)
    finally:
        os.close(handle)
