"""The interface of a log, and what its adapters share: following the records, idempotency keys, the checks of a writer.

A commit: acquire `writer`, `read` and apply what is new, validate the change against the graph, `append` it.
"""

from __future__ import annotations

import hashlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from model_store.errors import Behind, KeyReused, RecordsPruned
from model_store.graph_log.record import Entry, Position, Record, checked_entry, encode_group

MAX_KEYS = 1_000_000
"""The number of idempotency keys that a process keeps, at about 0.5 kB each. Older ones are forgotten, as if pruned."""
BATCH = 1000
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.001, 0.02


class Cursor(NamedTuple):
    """A position, and where its next record is stored."""

    position: Position = Position()
    segment: int = 0
    offset: int = 0


class GraphLog(ABC):
    """The log of one graph. Threads may share it, but take turns: `read` waits while `append` flushes."""

    durability: str
    """What the last append survives: a value of the table in docs/graph_log.md."""

    def __init__(self) -> None:
        self.guard = threading.RLock()
        self.tail: Cursor | None = None
        """The end of the log as far as this process has followed it; None until `follow` has been called."""
        self._reader: Cursor | None = None
        self._keys: dict[str, Cursor] = {}

    def position(self) -> Position:
        """Returns the sequence and the hash of the last record. The first call reads and checks the whole log."""
        return self.follow().position

    def read(self, after: int, limit: int = BATCH) -> list[Record]:
        """Returns the next records after a sequence, at most `limit`; [] only at the end of the log.

        Raises:
            RecordsPruned: the next record was removed.
            LogError: a record is damaged, or the log ends before `after`.
            StoreUnavailable: the log cannot be read now.
        """
        with self.guard:
            cursors = [cursor for cursor in (self._reader, self.tail) if cursor and cursor.position.sequence == after]
            records, self._reader = self.batch(cursors[0] if cursors else self.cursor_at(after), limit)
        return [record for _, record in records]

    def find(self, key: str) -> Record | None:
        """Returns the record with an idempotency key.

        Returns None if there is none, if it was pruned, or if MAX_KEYS or more later records have keys.
        """
        with self.guard:
            self.follow()
            return self.recall(key)

    def wait(self, after: int, seconds: float) -> bool:
        """Waits for a record after a sequence. Returns False if none came within `seconds`."""
        end, pause = time.monotonic() + seconds, MIN_PAUSE_SECONDS
        while self.position().sequence <= after:
            if (left := end - time.monotonic()) <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(2 * pause, MAX_PAUSE_SECONDS)
        return True

    @abstractmethod
    def writer(self, timeout: float) -> AbstractContextManager[Writer]:
        """Acquires the lease of the log, and releases it at the end of the `with` block.

        Raises:
            StoreBusy: other writers kept the lease for `timeout` seconds.
            StoreUnavailable: the log cannot be read or written now.
            LogError: a record is damaged.
        """

    @abstractmethod
    def prune(self, through: int) -> int:
        """Removes records with a sequence up to `through`. Returns the first sequence that is left.

        The caller makes sure that no version needs them. May keep some of them. The keys of removed records are forgotten: a
        change that is sent again is then a new change.
        """

    @abstractmethod
    def remove(self) -> None:
        """Removes the whole log, which no version needs and no process uses."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """The space that the log takes: on the disk, or in the memory of Redis."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def start(self) -> Cursor:
        """Returns the place before the first record that is left."""

    @abstractmethod
    def cursor_at(self, sequence: int) -> Cursor:
        """Returns the place after the record with this sequence. Raises as `read` does."""

    @abstractmethod
    def batch(self, cursor: Cursor, limit: int) -> tuple[list[tuple[Cursor, Record]], Cursor]:
        """Returns committed, checked records after a cursor, each with the place before it, and the place after the last.

        Returns at most `limit` records, and none only at the end of the log. Raises as `read` does.
        """

    def follow(self) -> Cursor:
        """Reads the new records and remembers their keys. Returns the end of the log."""
        with self.guard:
            try:
                return self._follow(self.tail or self.start())
            except RecordsPruned:  # other processes pruned the log while this one did not follow it
                return self._follow(self.start())

    def follow_first(self) -> None:
        """Reads the whole log at first use, before the lease is acquired, so that other writers do not wait."""
        if self.tail is None:
            self.follow()

    def _follow(self, cursor: Cursor) -> Cursor:
        while True:
            records, self.tail = self.batch(cursor, BATCH)
            if not records:
                return self.tail
            for place, record in records:
                self.remember(record.key, place)
            cursor = self.tail

    def remembers(self, key: str) -> bool:
        """Whether `recall` has to read the log for this key."""
        return key in self._keys

    def recall(self, key: str) -> Record | None:
        """As `find`, but does not follow the log first."""
        if key not in self._keys:
            return None
        try:
            return self.batch(self._keys[key], limit=1)[0][0][1]
        except RecordsPruned:
            del self._keys[key]
            return None

    def remember(self, key: str, cursor: Cursor) -> None:
        """`cursor` is the place before the record with this key."""
        if key:
            self._keys[key] = cursor
            if len(self._keys) > MAX_KEYS:
                del self._keys[next(iter(self._keys))]


class Writer(ABC):
    """The holder of the lease. Not for several threads at once."""

    fencing_number: int
    """The fencing number of the lease."""

    def __init__(self, log: GraphLog) -> None:
        self.log = log

    def append(self, entries: Sequence[Entry], expected: int) -> list[Record]:
        """Appends a group of (idempotency key or "", payload) with one flush, all or none. Returns their records, in order.

        An entry whose key and payload are in the log already is not appended; its record is the earlier one. `find`
        says which keys are forgotten: an entry with such a key is appended again.

        Args:
            expected: the sequence of the last record that the caller has seen.

        Raises:
            Behind: the log has records after `expected`. Nothing was appended.
            Fenced: another writer has taken over. Nothing was appended; acquire the lease again.
            KeyReused: a key is in the log with another payload. Nothing was appended.
            DataError: a key is too long or not printable, or a payload is too long. Nothing was appended.
            StoreUnavailable: the write failed: no space, an I/O error, no connection. The message says whether the group may
                have been written. When the log can be used again, `find` with a key of the group shows whether it was.
        """
        entries = [checked_entry(entry) for entry in entries]
        log = self.log
        with log.guard:
            tail = log.tail or log.follow()
            if tail.position.sequence != expected:
                raise Behind(f"the log ends at sequence {tail.position.sequence}, expected {expected}: read the new records")
            results, fresh = self._separate(entries)
            records = self._append(fresh) if fresh else []
        return [records[result] if isinstance(result, int) else result for result in results]

    def _append(self, entries: list[Entry]) -> list[Record]:
        cursor = self._prepare()
        group = encode_group(entries, cursor.position, self.fencing_number)
        self._commit(cursor, group)
        for record, data in group:
            self.log.remember(record.key, cursor)
            cursor = Cursor(Position(record.sequence, record.hash), cursor.segment, cursor.offset + len(data))
        self.log.tail = cursor
        return [record for record, _ in group]

    def _separate(self, entries: Sequence[Entry]) -> tuple[list[Record | int], list[Entry]]:
        """Returns, for each entry, its earlier record or its index among the new entries; and the new entries."""
        results: list[Record | int] = []
        fresh: list[Entry] = []
        index_of: dict[str, int] = {}
        for key, payload in entries:
            earlier = self.log.recall(key)
            if earlier is not None:
                if earlier.digest != hashlib.sha256(payload).hexdigest():
                    raise KeyReused(key)
                results.append(earlier)
                continue
            index = index_of.setdefault(key, len(fresh)) if key else len(fresh)
            if index == len(fresh):
                fresh.append((key, payload))
            elif fresh[index][1] != payload:
                raise KeyReused(key)
            results.append(index)
        return results, fresh

    @abstractmethod
    def _prepare(self) -> Cursor:
        """Returns the end of the log, where `_commit` writes. May change `fencing_number`. May raise Fenced."""

    @abstractmethod
    def _commit(self, cursor: Cursor, group: list[tuple[Record, bytes]]) -> None:
        """Writes the group at the cursor. When this method returns, the group survives what `GraphLog.durability` states.

        Raises Fenced, Behind or StoreUnavailable.
        """
