"""`python -m training` in its own process group, at the lowest priority.

The process stays in the session of its parent: Linux divides processor time between sessions first (autogroup), so in its
own session a training at idle priority would not yield to the service.

The process inherits a locked file from its parent, and the kernel releases the lock when the process dies. So any process
can tell whether the training is alive without trusting process ids, and can adopt it when its supervisor died.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from model_store.run_contract import RunEvent, StartedEvent
from service.jobs import priority
from service.jobs.job_folder import EVENTS, FENCING_FILE, LOCK, LOG, is_held
from service.settings import THREAD_LIMITS, Settings

PR_SET_PDEATHSIG = 1
GRACE_SECONDS = 60  # a training without a supervisor ends so long after SGF_TRAINING_SECONDS
EXIT_SECONDS = 5.0


class TrainingProcess:
    def __init__(self, folder: Path, process: subprocess.Popen[bytes] | None = None) -> None:
        self._folder, self._process = folder, process

    @classmethod
    def start(cls, folder: Path, arguments: list[str], settings: Settings, tied: bool = False) -> TrainingProcess:
        """`tied`: the training dies with the calling thread, and has a fencing file. Otherwise it can be adopted."""
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "training", *arguments, "--quiet", f"--events={folder / EVENTS}"]
        command.append(f"--at-most={round(settings.training_seconds) + GRACE_SECONDS}")
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
                    pass_fds=(lock,),
                    preexec_fn=_die_with(os.getpid()) if tied else None,  # safe: a tied caller has one thread
                )
            os.pwrite(lock, b"%d\n" % process.pid, 0)
        finally:
            os.close(lock)
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
        """Signals the process group. While the lock is held a member of the group is alive, so its id is not reused."""
        group = self._group()
        if group is not None:
            priority.restore(group)
            with suppress(ProcessLookupError):
                os.killpg(group, number)
            if number == signal.SIGKILL:
                priority.release_memory(group)

    def release_if_killed(self) -> None:
        """Speeds up the exit of a training that another process has killed. Does not affect a living training."""
        group = self._group()
        if group is not None and priority.release_memory(group):
            priority.restore(group)

    def _group(self) -> int | None:
        with suppress(OSError, ValueError):
            return int((self._folder / LOCK).read_text())
        with suppress(OSError), (self._folder / EVENTS).open() as events:  # the parent died before it wrote the id
            started = RunEvent.parse(events.readline())
            return started.pid if isinstance(started, StartedEvent) else None
        return None


def _environment(settings: Settings) -> dict[str, str]:
    """The environment of the service without its settings, which contain secrets."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SGF_", "PROMETHEUS_"))}
    threads = settings.training_threads or max(1, len(os.sched_getaffinity(0)) // 2)
    return environ | dict.fromkeys(THREAD_LIMITS, str(threads)) | {"SGF_DATA_ROOT": str(settings.data_root.resolve())}


def _die_with(parent: int) -> Callable[[], None]:
    prctl = ctypes.CDLL(None).prctl

    def set_up() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before prctl
            os._exit(1)

    return set_up
