"""The writer of a file log. The order of its steps is explained in `lease`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from model_store.errors import Fenced, StoreUnavailable
from model_store.graph_log.lease import succeed
from model_store.graph_log.log import Cursor, Writer
from model_store.graph_log.record import Record
from model_store.graph_log.segment import Segment, os_errors
from model_store.versions.durable import sync

if TYPE_CHECKING:
    from model_store.graph_log.file_log import FileLog


class FileWriter(Writer):
    def __init__(self, log: FileLog, segment: Segment, segment_bytes: int) -> None:
        """Takes ownership of a leased segment."""
        super().__init__(log)
        self._folder, self._segment, self._segment_bytes = log.folder, segment, segment_bytes
        self.fencing_number = segment.number
        self._problem: Fenced | StoreUnavailable | None = None
        """The error that further appends raise; None while this writer may append."""

    def refresh(self) -> Cursor:
        """Follows the log to its end. Raises Fenced if it continues in a segment of another process."""
        cursor = self.log.follow()
        if cursor.segment != self.fencing_number:
            raise self._fenced()
        return cursor

    def close(self) -> None:
        self._segment.close()

    def _prepare(self) -> Cursor:
        if self._problem is not None:
            raise self._problem
        with os_errors(self._folder):
            cursor = self.refresh()
            if cursor.offset < self._segment_bytes and not self._segment.words.closing:
                return cursor
            if not self._continue_in_successor(cursor):
                raise self._fenced()
            return self.refresh()

    def _commit(self, cursor: Cursor, group: list[tuple[Record, bytes]]) -> None:
        data = b"".join(data for _, data in group)
        end = cursor.offset + len(data)
        self._problem = StoreUnavailable("an earlier append of this writer failed; acquire the lease again")
        self._write(data, cursor.offset)
        with os_errors(self._folder, "could not be flushed: the changes may or may not be in it"):
            self._segment.flush()
            if not self._segment.words.closing:
                self._segment.commit(end)
            elif not self._continue_in_successor(cursor):
                self._obey_seal(end)
                return
        self._problem = None

    def _write(self, data: bytes, offset: int) -> None:
        with os_errors(self._folder, "cannot be written, and the changes are not in it"):
            try:
                self._segment.write(data, offset)
            except OSError:
                self._segment.truncate(offset)
                self._problem = None
                raise

    def _continue_in_successor(self, cursor: Cursor) -> bool:
        """False if another process has created the successor."""
        successor = succeed(self._segment, cursor)
        if successor is None:
            return False
        self._segment.close()
        self._segment, self.fencing_number = successor, successor.number
        return True

    def _obey_seal(self, end: int) -> None:
        """Raises Fenced unless the seal of the segment includes its records up to `end`."""
        self._problem = self._fenced()
        sync(self._folder)  # a power cut must not remove the seal, which would let the records appear
        successor = Segment.open(self._folder, self.fencing_number + 1)
        if successor is not None:
            successor.close()
        if successor is None or successor.seal < end:
            raise self._problem

    def _fenced(self) -> Fenced:
        return Fenced(
            f"another process has taken over the graph log {self._folder.name}, because this one held the lease without "
            "using it; nothing was appended: acquire the lease again"
        )
