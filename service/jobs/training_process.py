"""`python -m training` in a process group of its own, at the lowest priority.

Not in a session of its own: Linux shares the processors out by sessions first (autogroup), and an idle priority would count
only among the processes of its own one. Here it gives way to the service at once.

It holds a lock in its job's folder, inherited from whoever started it and given back by the kernel when it dies. So anybody
can tell whether it lives without trusting process numbers, and take over its supervision from a process that died.

A training that is tied to a worker has a permit there, too: it publishes and goes live only while that file is there. To a
worker that is cut off, or paused, nothing can be said, and its training may go on: so whoever gives the job up removes it.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from model_store.locks import exclusive_unless_held
from service.jobs import priority
from service.settings import THREAD_LIMITS, Settings

EVENTS, LOG, LOCK, PERMIT = "events.jsonl", "log.txt", "lock", "permit"
PR_SET_PDEATHSIG = 1
GRACE_SECONDS = 60
"""Over the limit of a training, at which its supervisor ends it: then it ends by itself, if nobody supervises it."""
EXIT_SECONDS = 5.0


class TrainingProcess:
    def __init__(self, folder: Path, process: subprocess.Popen[bytes] | None = None) -> None:
        self._folder, self._process = folder, process

    @classmethod
    def start(cls, folder: Path, arguments: list[str], settings: Settings, tied: bool = False) -> TrainingProcess:
        """`tied`: it dies with the thread that calls this; else it outlives us, and somebody adopts it."""
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "training", *arguments, "--quiet", f"--events={folder / EVENTS}"]
        command.append(f"--at-most={round(settings.training_seconds) + GRACE_SECONDS}")
        held = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if tied:
                (folder / PERMIT).touch()  # not before the lock is held: a permit that nobody holds is cleared away
                command.append(f"--only-while={folder / PERMIT}")
            with (folder / LOG).open("ab") as log:
                process = subprocess.Popen(  # noqa: S603  # a checked submission, and no shell
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=_environment(settings),
                    process_group=0,
                    pass_fds=(held,),
                    preexec_fn=_dying_with(os.getpid()) if tied else None,  # tied callers have one thread
                )
            os.pwrite(held, b"%d\n" % process.pid, 0)
        finally:
            os.close(held)
        priority.lower(process.pid)
        return cls(folder, process)

    @classmethod
    def adopt(cls, folder: Path) -> TrainingProcess | None:
        """The process that somebody else started for this job; None where there is none any more."""
        return cls(folder) if is_held(folder / LOCK) else None

    @property
    def exit_code(self) -> int | None:
        """Of one that is not alive. None where it is not known: the process was somebody else's child."""
        if self._process is None:
            return None
        with suppress(subprocess.TimeoutExpired):  # its lock is given back a moment before its code is there
            self._process.wait(timeout=EXIT_SECONDS)
        return self._process.returncode

    def alive(self) -> bool:
        if self._process is not None:
            self._process.poll()  # so that it does not stay as a zombie
        return is_held(self._folder / LOCK)

    def signal(self, number: signal.Signals) -> None:
        """Ends all of its group. While the lock is held somebody of the group lives, so the number is still theirs."""
        leader = self._leader()
        if leader is not None:
            priority.put_back(leader)
            with suppress(ProcessLookupError):
                os.killpg(leader, number)
            if number == signal.SIGKILL:
                priority.release_memory(leader)

    def hurry(self) -> None:
        """Helps one along that somebody else has killed; one that lives is not touched."""
        leader = self._leader()
        if leader is not None and priority.release_memory(leader):
            priority.put_back(leader)

    def _leader(self) -> int | None:
        with suppress(OSError, ValueError):  # no such file: the job was given up
            return int((self._folder / LOCK).read_text())
        return self._told()

    def _told(self) -> int | None:
        """Its number as its first event has it, where its starter died before writing it down."""
        with suppress(OSError, ValueError, KeyError), (self._folder / EVENTS).open() as events:
            return int(json.loads(events.readline())["pid"])
        return None


def is_held(lock: Path) -> bool:
    with exclusive_unless_held(lock) as ours:
        return not ours and lock.exists()


def _environment(settings: Settings) -> dict[str, str]:
    """Ours without our settings: among them are secrets, which training does not need."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SGF_", "PROMETHEUS_"))}
    threads = settings.training_threads or max(1, len(os.sched_getaffinity(0)) // 2)
    return environ | dict.fromkeys(THREAD_LIMITS, str(threads)) | {"SGF_DATA_ROOT": str(settings.data_root.resolve())}


def _dying_with(parent: int) -> Callable[[], None]:
    prctl = ctypes.CDLL(None).prctl

    def set_up() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we said so
            os._exit(1)

    return set_up
