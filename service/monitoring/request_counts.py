"""The counts of sampled requests in all workers of a server, over the last day.

Each worker adds to its own file in the folder of the metrics, and any worker reads all files. A file is mapped into memory,
so its counts survive the worker. After half a day a worker begins a new file; files older than a day are removed.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from service.telemetry.process_info import identity
from sgformer.histograms import Counts

WINDOW_SECONDS = 12 * 3600
PREFIX = "drift_"


class RequestCounts:
    """The counts of one version. All workers that serve it have the same bins."""

    def __init__(self, folder: Path | None, snapshot: str, size: int) -> None:
        """Without a folder, only this process is counted."""
        self._folder, self._size = folder, size
        self._prefix = f"{PREFIX}{snapshot[:16]}_"
        self._own: list[tuple[float, Counts]] = []
        """The files of this process: when each began, and its counts."""

    def add(self, counts: Counts) -> None:
        now = time.time()
        if not self._own or now > self._own[-1][0] + WINDOW_SECONDS:
            self._own = [*self._own[-1:], (now, self._new_part(now))]
        self._own[-1][1][:] += counts

    def total(self) -> tuple[Counts, float | None]:
        """The counts of all workers, and when they begin; None if there are none."""
        earliest = time.time() - 2 * WINDOW_SECONDS
        parts = [part for part in (self._own if self._folder is None else self._read()) if part[0] > earliest]
        counts = np.zeros(self._size, dtype=np.int64)
        for _, part in parts:
            counts += part
        return counts, min((start for start, _ in parts), default=None)

    def _new_part(self, now: float) -> Counts:
        if self._folder is None:
            return np.zeros(self._size, dtype=np.int64)
        for path in self._folder.glob(f"{PREFIX}*"):
            if _start(path) < now - 2 * WINDOW_SECONDS:
                path.unlink(missing_ok=True)
        name = f"{self._prefix}{now:.3f}_{identity(os.getpid())}.counts"  # not .db, which prometheus_client reads
        return np.memmap(self._folder / name, np.int64, "w+", shape=(self._size,))

    def _read(self) -> list[tuple[float, Counts]]:
        parts = []
        assert self._folder is not None  # noqa: S101
        for path in self._folder.glob(f"{self._prefix}*"):
            with suppress(FileNotFoundError):  # another worker has removed it
                counts = np.fromfile(path, dtype=np.int64)
                if len(counts) == self._size:  # otherwise another worker is just creating the file
                    parts.append((_start(path), counts))
        return parts


def _start(path: Path) -> float:
    return float(path.name.split("_")[2])
