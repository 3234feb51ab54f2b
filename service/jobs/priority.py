"""The priority of a training: the lowest while it works, and out of the way of its own end.

On a busy machine an idle process that is killed takes 10 s and more to die: taking its memory apart is work, which is done
at its own priority. So whoever stops it raises it first, where that is allowed, and takes its memory apart himself.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

PROCESS_MRELEASE = 448
"""The system call's number, on every architecture; since Linux 5.15, and without a function in libc."""


def lower(pid: int) -> None:
    """Threads that come later inherit it. Where the system refuses, training competes like everybody else."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, 19)
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))


def put_back(pid: int) -> None:
    """All threads of a process to the usual priority. Only the privileged may; then it heeds a signal at once."""
    threads: list[Path] = []
    with suppress(OSError):
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    for thread in threads:
        with suppress(OSError, AttributeError):  # of each: one that has just ended must not keep the others idle
            os.sched_setscheduler(int(thread.name), os.SCHED_OTHER, os.sched_param(0))
            os.setpriority(os.PRIO_PROCESS, int(thread.name), 0)


def release_memory(pid: int) -> bool:
    """Of our own process that was killed: frees its memory in our time and at our priority, which needs no privilege.

    Returns whether it did. The kernel refuses it for a process that is not dying, so it may be tried on any.
    """
    with suppress(OSError, AttributeError):
        handle = os.pidfd_open(pid)
        try:
            # Where there is no such call, it dies at its own pace.
            return bool(ctypes.CDLL(None).syscall(PROCESS_MRELEASE, handle, 0) == 0)
        finally:
            os.close(handle)
    return False
