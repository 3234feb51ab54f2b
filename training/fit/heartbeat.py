"""Ends a process of a run that has lost the others.

A collective operation waits for a process on a host that is cut off until the time limit of the process group, which is
long: hosts may read slow disks. The heartbeats of all processes, in the key-value store of torch.distributed, tell a slow
process from a lost one.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

BEAT_SECONDS = 5.0
LOST_SECONDS = 120.0
"""Longer than any computation that holds the interpreter lock, during which a process has no heartbeat."""
DONE = 1 << 40
"""Added to the count of heartbeats of a process that has passed the last operation that needs all processes."""


class Heartbeat:
    """Started in every process after the process group has been joined."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._stopped, now = rank, threading.Event(), time.monotonic()
        self._counts, self._seen_at = [0] * size, [now] * size
        """Of every rank: the last count of heartbeats, and when it changed. This rank's changes while the store answers."""
        self._is_done = False
        self._beating = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._beating.start()
        threading.Thread(target=self._watch, name="heartbeat watch", daemon=True).start()

    def stop(self, is_done: bool) -> None:
        """Ends the watch. `is_done`: tells the others that this process has passed the last operation that needs all."""
        self._is_done = is_done
        self._stopped.set()
        self._beating.join(timeout=BEAT_SECONDS)

    def _beat(self) -> None:
        """Has a connection of its own: a call that waits for a lost host blocks its connection."""
        try:
            store = self._connect()
            while not self._stopped.wait(BEAT_SECONDS):
                self._exchange(store, 1)
            if self._is_done:
                self._exchange(store, DONE)
        except RuntimeError:  # of torch: the host of the store cannot be reached; the watch notices it
            return

    def _connect(self) -> Any:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        kinds: Any = dist  # whose stub does not export the classes of stores
        limit = timedelta(seconds=LOST_SECONDS)
        store = kinds.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=limit)
        return kinds.PrefixStore(f"heartbeat/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)

    def _exchange(self, store: Any, beats: int) -> None:
        counts = [store.add(f"beat/{rank}", beats if rank == self._rank else 0) for rank in range(len(self._counts))]
        for rank, count in enumerate(counts):
            if count != self._counts[rank]:
                self._counts[rank], self._seen_at[rank] = count, time.monotonic()

    def _watch(self) -> None:
        while not self._stopped.wait(BEAT_SECONDS / 5):
            if max(self._counts) >= DONE:  # all processes have passed the last operation that needs all of them
                return
            late = [rank for rank, seen_at in enumerate(self._seen_at) if time.monotonic() - seen_at > LOST_SECONDS]
            if late:
                self._end(late)

    def _end(self, late: list[int]) -> None:
        who = "the store of the run" if self._rank in late else f"rank {', '.join(map(str, late))}"
        reason = f"rank {self._rank}: the connection to another process of the run was lost: {who}"
        sys.stderr.write(f"sgf-train: {reason} has not answered for {LOST_SECONDS:g} s; this process ends\n")
        sys.stderr.flush()
        os._exit(1)  # the main thread waits for the lost process and cannot be interrupted
