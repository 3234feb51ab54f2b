"""The memory of a process as the kernel reports it."""

from __future__ import annotations

import threading
from pathlib import Path


def status_bytes(field: str, pid: int | str = "self") -> int:
    """Returns the bytes of a field of /proc/PID/status, e.g. VmRSS, VmHWM, RssAnon."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def private_pages() -> int:
    """Returns the bytes that no other process shares, including clean pages of mapped files."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


class PeakAnonymous:
    """Samples RssAnon every 2 ms while a block runs, and keeps the maximum: the memory that a container must have.

    RssAnon excludes pages of mapped files, which the kernel can write back and drop.
    """

    bytes = 0

    def __enter__(self) -> PeakAnonymous:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.002):
            self.bytes = max(self.bytes, status_bytes("RssAnon"))
