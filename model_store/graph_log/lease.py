"""The lease of a file log: who may append, and how another process takes over from a holder that is paused or hung.

The lease is an flock on the newest segment n. If the holder was silent for `lease_seconds`, another process *succeeds* it:

    1. it sets the closing word of n,
    2. then reads the complete groups of n after its committed length, writes them again and flushes them,
    3. then creates n+1, whose header seals n at the end of the last complete group. The name n+1 can be created only once.

A writer appends a group to n in the same manner: a. write, b. flush, c. read the closing word, d. commit if it is 0. If it
is 1, the writer succeeds itself, or reads the seal of the process that was first; the group counts if the seal includes it.

Why no acknowledged record is lost, and no record appears that a seal excludes:

- Step 1 and step a are writes to one file, which the kernel orders. If a is first, step 2 reads the group, and the seal
  includes it. If 1 is first, the writer reads 1 in step c, and obeys the seal. No clock is involved.
- If several processes succeed n, each has done step 1 before its step 2, so each of their seals includes all that was
  committed. Only one creates n+1; the others discard theirs.
- A complete group is never changed or cut off: a failed write leaves an incomplete group, and only that is truncated. So the
  length that step 2 reads stays valid, whatever the holder does meanwhile.
- The committed length never exceeds the seal: step d happens only if step 2 has not begun when step c happens. So readers
  may deliver up to the committed length without reading a seal.
- A process that dies between 1 and 3 leaves the closing word at 1. The next process that gets the flock continues at 2.
- A process that is paused between 1 and 3 could create an n+1 that was created and pruned meanwhile. Therefore succession
  holds a shared lock that pruning needs exclusively; pruning also stops at a segment whose flock is held.

A lease that is too short costs time, never records. The words of the header work through the page cache of one machine:
the folder must be on a local file system. For several machines there is `redis_log`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from model_store.errors import StoreBusy
from model_store.graph_log.log import MAX_PAUSE_SECONDS, MIN_PAUSE_SECONDS, Cursor
from model_store.graph_log.record import Position
from model_store.graph_log.segment import Segment, segment_numbers
from model_store.versions.durable import make_folder
from model_store.versions.locks import SharedLock

LOCK = ".lock"


class Lease:
    """Acquires the lease of one log. Remembers between attempts for how long the holder has been silent."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder, self._seconds = folder, seconds
        self._seen: tuple[object, ...] = ()
        self._seen_at = 0.0

    def acquire(self, timeout: float, follow: Callable[[], Cursor]) -> Segment:
        """Returns the newest segment, repaired and locked. `follow` returns the end of the committed records."""
        end, pause = time.monotonic() + timeout, MIN_PAUSE_SECONDS
        while True:
            segment = self._newest()
            try:
                leased = self._attempt(segment, follow)
            except BaseException:
                segment.close()
                raise
            if leased is not segment:
                segment.close()
            if leased is not None:
                return leased
            if time.monotonic() >= end:
                raise StoreBusy(f"the lease of the graph log {self._folder.name} was not free for {timeout:g} s; try again")
            time.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)

    def _attempt(self, segment: Segment, follow: Callable[[], Cursor]) -> Segment | None:
        if segment.try_lock():
            segment.count_acquisition()
            cursor = follow()
            return repair(segment, cursor) if cursor.segment == segment.number else None
        if self._silent_seconds(segment) < self._seconds:
            return None
        cursor = follow()
        return succeed(segment, cursor) if cursor.segment == segment.number else None

    def _silent_seconds(self, segment: Segment) -> float:
        seen = (segment.number, segment.words, segment.size)
        if seen != self._seen:
            self._seen, self._seen_at = seen, time.monotonic()
        return time.monotonic() - self._seen_at

    def _newest(self) -> Segment:
        make_folder(self._folder)
        while True:
            numbers = segment_numbers(self._folder)
            if numbers:
                segment = Segment.open(self._folder, numbers[-1])
            else:
                with _succession(self._folder):
                    segment = Segment.create(self._folder, 1, Position(), seal=0)
                if segment is not None:
                    segment.unlock()  # `acquire` locks it, as a segment that existed before
            if segment is not None:
                return segment


def repair(segment: Segment, cursor: Cursor) -> Segment | None:
    """Commits the complete groups after the cursor and cuts off an incomplete one. The caller holds the lease.

    Returns the segment to append to: this one, or its successor if this one is closing; None if another process has created
    the successor.
    """
    end = segment.valid_end(cursor)
    segment.truncate(end.offset)
    if end != cursor:
        segment.rewrite(cursor.offset, end.offset)
    if segment.words.closing:
        return succeed(segment, cursor)
    if end != cursor:
        segment.commit(end.offset)
    return segment


def succeed(segment: Segment, cursor: Cursor) -> Segment | None:
    """Seals a segment and returns its leased successor; None if another process has created it.

    `cursor` is the end of the committed records of the segment. The caller may hold the lease, or not.
    """
    folder = segment.path.parent
    with _succession(folder):
        if segment.is_pruned() or segment_numbers(folder)[-1] != segment.number:
            return None
        segment.announce_seal()
        end = segment.valid_end(cursor)
        segment.rewrite(cursor.offset, end.offset)
        return Segment.create(folder, segment.number + 1, end.position, seal=end.offset)


@contextmanager
def _succession(folder: Path) -> Iterator[None]:
    """Excludes pruning, but not other successions."""
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    lock = SharedLock(handle, folder / LOCK)
    try:
        yield
    finally:
        lock.release()
