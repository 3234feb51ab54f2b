"""A log in files of one machine: <store>/<model>/graph_log/<graph id>/000000000001.log, 000000000002.log ...

A reader delivers a record only after its writer has flushed it and raised the committed length in the header of the
segment, so no delivered record disappears, not even in a power cut. A power cut may lose the committed length: a reader that
finds bytes after it and no living writer repairs the segment as a writer would (`lease.repair`).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice, pairwise
from pathlib import Path

from model_store.errors import LogError, RecordsPruned
from model_store.graph_log.file_writer import FileWriter
from model_store.graph_log.lease import LOCK, Lease, repair
from model_store.graph_log.log import BATCH, Cursor, GraphLog
from model_store.graph_log.record import Record
from model_store.graph_log.segment import NEW, Segment, os_errors, segment_numbers, segment_path
from model_store.versions.durable import sync
from model_store.versions.locks import exclusive_unless_held

LEASE_SECONDS = 3.0
SEGMENT_BYTES = 16 * 2**20


class FileLog(GraphLog):
    durability = "fsync"

    def __init__(self, folder: Path, *, lease_seconds: float = LEASE_SECONDS, segment_bytes: int = SEGMENT_BYTES) -> None:
        """The folder may not exist yet: the first writer creates it.

        Args:
            lease_seconds: another writer takes over if the holder of the lease has not used it for this time.
            segment_bytes: a segment that is longer than this is followed by a new one.
        """
        super().__init__()
        self.folder, self._segment_bytes = folder, segment_bytes
        self._lease = Lease(folder, lease_seconds)
        self._segment: Segment | None = None

    @contextmanager
    def writer(self, timeout: float) -> Iterator[FileWriter]:
        self.follow_first()
        with os_errors(self.folder):
            writer = FileWriter(self, self._lease.acquire(timeout, self.follow), self._segment_bytes)
        try:
            writer.refresh()
            yield writer
        finally:
            writer.close()

    def prune(self, through: int) -> int:
        with os_errors(self.folder), exclusive_unless_held(self.folder / LOCK) as lock_was_free:
            if lock_was_free:  # else a process creates or prunes segments, or there is no log: the next call prunes
                self._remove_segments(through)
        return self.start().position.sequence + 1

    def remove(self) -> None:
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _remove_segments(self, through: int) -> None:
        for leftover in self.folder.glob(f"{NEW}*"):  # of killed processes
            leftover.unlink(missing_ok=True)
        for number, following in pairwise(segment_numbers(self.folder)):
            successor = self._header(following)
            if successor is None or successor.base.sequence > through:
                break
            path = segment_path(self.folder, number)
            with exclusive_unless_held(path) as lock_was_free:
                if not lock_was_free:  # a fenced writer that has not noticed it yet
                    break
                path.unlink()
                sync(self.folder)  # in order: a power cut must not leave a gap

    @property
    def size_bytes(self) -> int:
        total = 0
        for number in segment_numbers(self.folder):
            with suppress(FileNotFoundError):
                total += segment_path(self.folder, number).stat().st_size
        return total

    def close(self) -> None:
        with self.guard:
            if self._segment is not None:
                self._segment.close()
                self._segment = None

    def start(self) -> Cursor:
        with os_errors(self.folder):
            for number in segment_numbers(self.folder):
                if segment := self._header(number):
                    return segment.first
        return Cursor()

    def cursor_at(self, sequence: int) -> Cursor:
        with os_errors(self.folder):
            for number in reversed(segment_numbers(self.folder)):
                segment = self._header(number)
                if segment is not None and segment.base.sequence <= sequence:
                    return self._advance(segment.first, sequence)
        start = self.start()
        if start.segment:
            first = start.position.sequence + 1
            raise RecordsPruned(f"the graph log {self.folder.name} begins with sequence {first}; {sequence + 1} was pruned")
        return self._advance(start, sequence)

    def _advance(self, cursor: Cursor, sequence: int) -> Cursor:
        while left := sequence - cursor.position.sequence:
            records, cursor = self.batch(cursor, min(left, BATCH))
            if not records:
                problem = f"the log ends at {cursor.position.sequence}, expected at least sequence {sequence}"
                raise LogError(self.folder.name, f"{problem}: records are lost")
        return cursor

    def batch(self, cursor: Cursor, limit: int) -> tuple[list[tuple[Cursor, Record]], Cursor]:
        records: list[tuple[Cursor, Record]] = []
        with os_errors(self.folder), self.guard:
            if not cursor.segment:  # before the first segment was created
                cursor = self.start()
            while cursor.segment:
                segment = self._open(cursor.segment)
                if segment is None:
                    cursor = self._relocate(cursor)
                    continue
                following = self._successor(segment) if segment.words.closing else None
                end = following.seal if following else segment.words.committed
                if end > segment.size:
                    raise LogError(segment.place(segment.size), f"the file ends before byte {end}: records are lost")
                for record, after, _ in islice(segment.records(cursor, end), limit):
                    records.append((cursor, record))
                    cursor = after
                if records:
                    break
                if following:
                    cursor = _enter_successor(cursor, segment, following)
                elif not self._repair_abandoned(segment, cursor):
                    break
        return records, cursor

    def _repair_abandoned(self, segment: Segment, cursor: Cursor) -> bool:
        """Commits complete groups that a killed writer or a power cut left uncommitted.

        Returns True if there may be more to read.
        """
        if segment.size <= cursor.offset or not segment.try_lock():
            return False
        try:
            leased = repair(segment, cursor)
            if leased is not None and leased is not segment:
                leased.close()
            return leased is not segment or segment.words.committed > cursor.offset
        except OSError:  # not permitted to write, or no space: the next writer repairs
            return False
        finally:
            segment.unlock()

    def _open(self, number: int) -> Segment | None:
        """Returns a segment, which stays open until another one is needed; None if it was pruned."""
        segment = self._segment
        if segment is None or segment.number != number or segment.is_pruned():
            self.close()
            self._segment = segment = Segment.open(self.folder, number)
        return segment

    def _successor(self, segment: Segment) -> Segment | None:
        """Returns the header of the segment after a closing segment; None if it does not exist yet."""
        number = segment.number + 1
        following = self._header(number)
        if following is None:
            newest = max(segment_numbers(self.folder), default=0)
            following = self._header(number)  # read after `newest`: segments appear and are pruned in order
            if following is None and newest > number and not segment.is_pruned():
                raise LogError(f"{self.folder.name}/{segment_path(self.folder, number).name}", "the file is missing")
        return following

    def _relocate(self, cursor: Cursor) -> Cursor:
        """Returns a cursor at the same position in another segment, because its segment was pruned. Raises RecordsPruned."""
        return self.cursor_at(cursor.position.sequence)._replace(position=cursor.position)

    def _header(self, number: int) -> Segment | None:
        """Returns a closed segment, of which only the header can be used; None if it does not exist."""
        segment = Segment.open(self.folder, number)
        if segment is not None:
            segment.close()
        return segment


def _enter_successor(cursor: Cursor, segment: Segment, following: Segment) -> Cursor:
    """Returns the beginning of `following`. Raises LogError unless it continues `segment` at the cursor."""
    if cursor.position != following.base:
        sequence = cursor.position.sequence
        raise LogError(following.place(0), f"does not continue {segment.path.name}, which ends at sequence {sequence}")
    return following.first
