"""A segment: one file of a log.

bytes 0-95     header, immutable: magic, number of the segment, sequence and hash of the last record before it, length at
               which it seals the segment before it, sha256 of all these
bytes 96-119   words that the processes of one machine share through the page cache; they are never flushed alone:
               committed length, number of acquisitions of the lease, closing (0 or 1)
from byte 128  records, in groups
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from model_store.errors import LogError, StoreUnavailable
from model_store.graph_log.log import Cursor
from model_store.graph_log.record import MIN_BYTES, Damaged, Position, Record, decode, length_of
from model_store.versions.durable import sync

HEADER = struct.Struct("<8sQQ32sQ")
WORD = struct.Struct("<Q")
WORDS = struct.Struct("<QQQ")
WORDS_AT = HEADER.size + 32
COMMITTED_AT, ACQUISITIONS_AT, CLOSING_AT = WORDS_AT, WORDS_AT + 8, WORDS_AT + 16
RECORDS_AT = 128
MAGIC = b"SGFLOG1\n"
SUFFIX, NEW = ".log", ".new-"
CHUNK_BYTES = 2**20


class Words(NamedTuple):
    committed: int
    """The offset up to which the records are flushed and readable."""
    acquisitions: int
    """Counts the leases on this segment, so that a waiting writer notices a new holder."""
    closing: int
    """1 as soon as a process begins to seal this segment; it stays 1."""


class Segment:
    """An open segment. The lease on it is an flock, which the kernel releases when its holder dies."""

    def __init__(self, path: Path, handle: int) -> None:
        """Takes ownership of `handle`. Raises LogError if the header is damaged."""
        self.path, self._handle = path, handle
        header = os.pread(handle, WORDS_AT, 0)
        if header[HEADER.size :] != hashlib.sha256(header[: HEADER.size]).digest():
            self.close()
            raise LogError(self.place(0), "the header is damaged")
        magic, self.number, sequence, base_hash, self.seal = HEADER.unpack_from(header)
        self.base = Position(sequence, base_hash.hex())
        if magic != MAGIC or segment_path(path.parent, self.number) != path:
            self.close()
            expected = f"expected segment {path.stem} with magic {MAGIC!r}: the file was renamed, or is not of a graph log"
            raise LogError(self.place(0), f"the header is that of segment {self.number} with magic {magic!r}, {expected}")

    @classmethod
    def open(cls, folder: Path, number: int) -> Segment | None:
        """Returns None if the segment does not exist."""
        path, flags = segment_path(folder, number), os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            handle = os.open(path, os.O_RDWR | flags)
        except FileNotFoundError:
            return None
        except OSError:  # a reader needs no permission to write
            handle = os.open(path, os.O_RDONLY | flags)
        return cls(path, handle)

    @classmethod
    def create(cls, folder: Path, number: int, base: Position, seal: int) -> Segment | None:
        """Creates a segment, durably, and holds the lease on it. Returns None if the segment exists already.

        Other processes see the segment complete and leased, or not at all: it gets its name when it is ready.
        """
        header = HEADER.pack(MAGIC, number, base.sequence, bytes.fromhex(base.hash), seal)
        content = (header + hashlib.sha256(header).digest() + WORDS.pack(RECORDS_AT, 1, 0)).ljust(RECORDS_AT, b"\0")
        temporary, path = folder / f"{NEW}{secrets.token_hex(6)}", segment_path(folder, number)
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            write_at(handle, content, 0)
            os.fsync(handle)
            path.hardlink_to(temporary)
        except BaseException as error:
            os.close(handle)
            if isinstance(error, FileExistsError):
                return None
            raise
        finally:
            temporary.unlink(missing_ok=True)
        sync(folder)
        return cls(path, handle)

    def place(self, offset: int) -> str:
        return f"{self.path.parent.name}/{self.path.name} at byte {offset}"

    @property
    def first(self) -> Cursor:
        """The place before the first record."""
        return Cursor(self.base, self.number, RECORDS_AT)

    @property
    def size(self) -> int:
        return os.fstat(self._handle).st_size

    @property
    def words(self) -> Words:
        return Words(*WORDS.unpack(os.pread(self._handle, WORDS.size, WORDS_AT)))

    def commit(self, end: int) -> None:
        """Makes the records up to `end` readable. They are flushed already."""
        os.pwrite(self._handle, WORD.pack(end), COMMITTED_AT)

    def count_acquisition(self) -> None:
        os.pwrite(self._handle, WORD.pack(self.words.acquisitions + 1), ACQUISITIONS_AT)

    def announce_seal(self) -> None:
        os.pwrite(self._handle, WORD.pack(1), CLOSING_AT)

    def try_lock(self) -> bool:
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        fcntl.flock(self._handle, fcntl.LOCK_UN)

    def is_pruned(self) -> bool:
        """Returns True if the path does not name this file any more."""
        try:
            return not os.path.samestat(self.path.stat(), os.fstat(self._handle))
        except FileNotFoundError:
            return True

    def write(self, data: bytes, offset: int) -> None:
        write_at(self._handle, data, offset)

    def flush(self) -> None:
        os.fdatasync(self._handle)

    def truncate(self, end: int) -> None:
        if self.size > end:
            os.ftruncate(self._handle, end)

    def rewrite(self, begin: int, end: int) -> None:
        """Writes complete groups of another process again, and then flushes them.

        After a failed flush, the kernel may have marked their pages clean, and the next flush would not write them.
        """
        for offset in range(begin, end, CHUNK_BYTES):
            self.write(os.pread(self._handle, min(CHUNK_BYTES, end - offset), offset), offset)
        self.flush()

    def records(self, cursor: Cursor, limit: int) -> Iterator[tuple[Record, Cursor, int]]:
        """Yields the records up to the offset `limit`, each with the place after it and how many follow in its group.

        Raises LogError at the first bytes that are not the next record.
        """
        data = memoryview(b"")
        while cursor.offset < limit:
            try:
                if len(data) < MIN_BYTES or len(data) < length_of(data):
                    data = self._read(cursor.offset, min(limit, cursor.offset + CHUNK_BYTES))
                if len(data) < (length := length_of(data)):
                    data = self._read(cursor.offset, min(limit, cursor.offset + length))
                record, length, following = decode(data, cursor.position)
            except Damaged as error:
                raise LogError(self.place(cursor.offset), str(error)) from None
            cursor = Cursor(Position(record.sequence, record.hash), self.number, cursor.offset + length)
            yield record, cursor, following
            data = data[length:]

    def valid_end(self, cursor: Cursor) -> Cursor:
        """Returns the end of the last complete group after a cursor, committed or not."""
        end = cursor
        with suppress(LogError):
            for _, after, following in self.records(cursor, self.size):
                end = end if following else after
        return end

    def close(self) -> None:
        os.close(self._handle)

    def _read(self, begin: int, end: int) -> memoryview:
        return memoryview(os.pread(self._handle, end - begin, begin))


def segment_path(folder: Path, number: int) -> Path:
    return folder / f"{number:012}{SUFFIX}"


def segment_numbers(folder: Path) -> list[int]:
    """Returns the numbers of the segments in a folder, which may not exist, in ascending order."""
    with suppress(FileNotFoundError):
        return sorted(int(path.stem) for path in folder.iterdir() if path.suffix == SUFFIX and path.stem.isdigit())
    return []


def write_at(handle: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, offset)
        view, offset = view[written:], offset + written


@contextmanager
def os_errors(folder: Path, problem: str = "cannot be used") -> Iterator[None]:
    """Raises StoreUnavailable for an error of the operating system."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StoreUnavailable(f"the graph log {folder.name} {problem}: {reason}") from error
