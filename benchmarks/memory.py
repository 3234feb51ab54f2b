"""How much memory a process has, as the kernel counts it."""

from __future__ import annotations

import threading
from pathlib import Path


def status(field: str, pid: int | str = "self") -> int:
    """Bytes of a field of /proc/PID/status, e.g. VmRSS, VmHWM, RssAnon."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def private_pages() -> int:
    """Bytes that no other process shares, clean pages of mapped files included."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


class PeakAnonymous:
    """The largest RssAnon while a block runs, looked at every 2 ms: what a container must really have.

    Pages of mapped files are not in it: the kernel can write them back and drop them.
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
            self.bytes = max(self.bytes, status("RssAnon"))
