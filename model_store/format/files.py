"""Reads and hashes files of a snapshot. The errors separate wrong content from a failing operating system."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from model_store.errors import SnapshotError, StoreUnavailable, UnknownVersion

WRONG_KIND_ERRORS = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO})
"""Error numbers of `open` for a symbolic link, folder, pipe or device instead of a regular file: the content is wrong."""


@contextmanager
def translate_os_errors(name: str = "snapshot") -> Iterator[None]:
    """Raises StoreUnavailable for an error of the operating system, or SnapshotError if the path is not a regular file."""
    try:
        yield
    except OSError as error:
        file = Path(os.fsdecode(error.filename)).name if isinstance(error.filename, str | bytes | os.PathLike) else name
        reason = f"cannot be read: {error.strerror or type(error).__name__}"
        if error.errno in WRONG_KIND_ERRORS:
            raise SnapshotError(file, reason) from error
        raise StoreUnavailable(f"{file}: {reason}") from error
    except MemoryError as error:
        raise StoreUnavailable(f"{name}: cannot be read: out of memory") from error


def open_regular_file(folder: Path, name: str) -> int:
    """Returns a descriptor of a regular file in the folder of a version. The caller closes it.

    Raises:
        UnknownVersion: the folder does not exist.
        SnapshotError: the file is missing or not a regular file.
        StoreUnavailable: the operating system refused to open it.
    """
    with translate_os_errors(name):
        try:
            if stat.S_ISLNK(folder.lstat().st_mode):
                raise SnapshotError(folder.name, "is a symbolic link, expected a folder")
            # O_NONBLOCK: opening a pipe would block until another process opens its other end.
            handle = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            if folder.exists():
                raise SnapshotError(name, "is missing") from None
            raise UnknownVersion(f"there is no version {folder.name} of {folder.parent.name}") from None
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise SnapshotError(name, "is not a regular file")
        return handle


def read_descriptor(handle: int, name: str, limit: int) -> bytes:
    """Returns the first `limit` bytes of an open file. Raises StoreUnavailable."""
    chunks, offset = [], 0
    with translate_os_errors(name):
        while offset < limit and (chunk := os.pread(handle, min(limit - offset, 1 << 20), offset)):
            chunks.append(chunk)
            offset += len(chunk)
    return b"".join(chunks)


def read_regular_file(folder: Path, name: str, limit: int) -> bytes:
    """Returns the first `limit` bytes. Takes no lock: an open file stays readable. Raises as `open_regular_file` does."""
    handle = open_regular_file(folder, name)
    try:
        return read_descriptor(handle, name, limit)
    finally:
        os.close(handle)


def sha256_of_all(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Returns the sha256 of each file. Hashes in threads: hashlib releases the interpreter lock."""

    def digest(name: str) -> str:
        with (folder / name).open("rb", buffering=0) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    # Largest first: a large file that starts last would leave the other threads idle.
    largest_first = sorted(names, key=lambda name: (folder / name).stat().st_size, reverse=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(largest_first, pool.map(digest, largest_first), strict=True))
