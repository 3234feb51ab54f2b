"""The priority of a training: idle while it runs, normal when it is stopped.

Idle priority protects the service: while a training runs, p99 of /predict is 1.5 times that of a quiet machine
(docs/benchmarks.md, retraining). Its cost: the kernel frees the memory of a killed process at the priority of the process,
which is slow on a busy machine, and a cancel must take less than 2 s. So the supervisor restores the priority, if permitted,
and releases the memory itself. One run with 200 MB on two busy cores: 4.3 s from kill to exit without help, 0.9 s with the
memory released, 0.4 s with both.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

PROCESS_MRELEASE = 448  # the system call on every architecture, since Linux 5.15; libc has no function for it


def lower(pid: int) -> None:
    """Sets idle priority, which later threads inherit. If the system refuses, the training runs at normal priority."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, 19)
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))


def restore(pid: int) -> None:
    """Sets all threads of a process to normal priority, which needs CAP_SYS_NICE; then a signal takes effect at once."""
    threads: list[Path] = []
    with suppress(OSError):
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    for thread in threads:
        with suppress(OSError, AttributeError):  # a thread may have just ended
            os.sched_setscheduler(int(thread.name), os.SCHED_OTHER, os.sched_param(0))
            os.setpriority(os.PRIO_PROCESS, int(thread.name), 0)


def release_memory(pid: int) -> bool:
    """Frees the memory of a killed process of the same user, at the priority of the caller. Returns whether it did.

    The kernel refuses the call for a living process, so any process may be passed.
    """
    with suppress(OSError, AttributeError):
        handle = os.pidfd_open(pid)
        try:
            # Before Linux 5.15 the call fails, and the kernel frees the memory later.
            return bool(ctypes.CDLL(None).syscall(PROCESS_MRELEASE, handle, 0) == 0)
        finally:
            os.close(handle)
    return False
