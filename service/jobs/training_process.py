"""`python -m training` in a process group of its own, at the lowest priority.

It stays in the session of its parent: Linux divides processor time between sessions first (autogroup), so in a session of
its own an idle priority would not yield to the service.

The process holds a lock in the job's folder, inherited from its parent and released by the kernel when the process dies. So
any process can tell whether the training lives without trusting process ids, and can adopt it when its supervisor died.

A training that is tied to a worker also has a fencing file there: it publishes and goes live only while that file exists. A
worker that is paused or cut off cannot be stopped from here, so the service fences its training by removing the file.
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

from model_store.versions.locks import exclusive_unless_held
from service.jobs import priority
from service.settings import THREAD_LIMITS, Settings

EVENTS, LOG, LOCK, FENCING_FILE = "events.jsonl", "log.txt", "lock", "permit"
PR_SET_PDEATHSIG = 1
GRACE_SECONDS = 60
"""A training without a supervisor ends by itself so long after SGF_TRAINING_SECONDS."""
EXIT_SECONDS = 5.0


class TrainingProcess:
    def __init__(self, folder: Path, process: subprocess.Popen[bytes] | None = None) -> None:
        self._folder, self._process = folder, process

    @classmethod
    def start(cls, folder: Path, arguments: list[str], settings: Settings, tied: bool = False) -> TrainingProcess:
        """`tied`: the training dies with the calling thread; else it outlives this process and can be adopted."""
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "training", *arguments, "--quiet", f"--events={folder / EVENTS}"]
        command.append(f"--at-most={round(settings.training_seconds) + GRACE_SECONDS}")
        held = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if tied:
                (folder / FENCING_FILE).touch()  # after locking: the service removes a fencing file without a lock
                command.append(f"--only-while={folder / FENCING_FILE}")
            with (folder / LOG).open("ab") as log:
                process = subprocess.Popen(  # noqa: S603  # validated arguments, no shell
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=_environment(settings),
                    process_group=0,
                    pass_fds=(held,),
                    preexec_fn=_dying_with(os.getpid()) if tied else None,  # safe: a tied caller has one thread
                )
            os.pwrite(held, b"%d\n" % process.pid, 0)
        finally:
            os.close(held)
        priority.lower(process.pid)
        return cls(folder, process)

    @classmethod
    def adopt(cls, folder: Path) -> TrainingProcess | None:
        """The training that another process started in this folder; None if it is dead."""
        return cls(folder) if is_held(folder / LOCK) else None

    @property
    def exit_code(self) -> int | None:
        """Of a dead training. None if it is unknown: the training was a child of another process."""
        if self._process is None:
            return None
        with suppress(subprocess.TimeoutExpired):  # the lock is released shortly before the exit code is available
            self._process.wait(timeout=EXIT_SECONDS)
        return self._process.returncode

    def alive(self) -> bool:
        if self._process is not None:
            self._process.poll()  # reaps it
        return is_held(self._folder / LOCK)

    def signal(self, number: signal.Signals) -> None:
        """Signals the process group. While the lock is held a member of the group lives, so its id is not reused."""
        group = self._group()
        if group is not None:
            priority.put_back(group)
            with suppress(ProcessLookupError):
                os.killpg(group, number)
            if number == signal.SIGKILL:
                priority.release_memory(group)

    def hurry(self) -> None:
        """Speeds up the exit of a killed training; a living one is not touched."""
        group = self._group()
        if group is not None and priority.release_memory(group):
            priority.put_back(group)

    def _group(self) -> int | None:
        with suppress(OSError, ValueError):  # no such file: the job was abandoned
            return int((self._folder / LOCK).read_text())
        return self._reported_pid()

    def _reported_pid(self) -> int | None:
        """The process id in the first event: the parent may have died before it wrote the lock file."""
        with suppress(OSError, ValueError, KeyError), (self._folder / EVENTS).open() as events:
            return int(json.loads(events.readline())["pid"])
        return None


def is_held(lock: Path) -> bool:
    with exclusive_unless_held(lock) as ours:
        return not ours and lock.exists()


def _environment(settings: Settings) -> dict[str, str]:
    """The environment of the service without its settings, which contain secrets."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SGF_", "PROMETHEUS_"))}
    threads = settings.training_threads or max(1, len(os.sched_getaffinity(0)) // 2)
    return environ | dict.fromkeys(THREAD_LIMITS, str(threads)) | {"SGF_DATA_ROOT": str(settings.data_root.resolve())}


def _dying_with(parent: int) -> Callable[[], None]:
    prctl = ctypes.CDLL(None).prctl

    def set_up() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before prctl
            os._exit(1)

    return set_up
