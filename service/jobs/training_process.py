"""`python -m training` in its own process group, at the lowest priority.

The process stays in the session of its parent: Linux divides CPU time between sessions first (autogroup), so in its
own session a training at idle priority would not yield to the service.

The process inherits a locked file from its parent, and the kernel releases the lock when the process dies. So any process
can tell whether the training is alive without trusting process ids, and can adopt it if its supervisor has died.

Idle priority protects the service: while a training runs, p99 of /predict is 1.5 times as high as without
(docs/benchmarks.md, retraining). Its cost: the kernel frees the memory of a killed process at the priority of the process,
which is slow on a busy machine, and a cancel must take less than 2 s. So the supervisor restores the priority, if permitted,
and releases the memory itself. One run with 200 MB on two busy cores: 4.3 s from kill to exit without help, 0.9 s with the
memory released, 0.4 s with normal priority too.
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

from service.jobs.job_folder import JobFolder
from service.settings import THREAD_LIMITS, Settings

PR_SET_PDEATHSIG = 1
PROCESS_MRELEASE = 448  # number of the system call, on every architecture since Linux 5.15; libc has no function for it
GRACE_SECONDS = 60  # a training without a supervisor ends this time after SGF_TRAINING_SECONDS
EXIT_SECONDS = 5.0


class TrainingProcess:
    def __init__(self, folder: JobFolder, process: subprocess.Popen[bytes] | None = None) -> None:
        """Without `process`, adopts the training that another process started in this folder; it may be dead."""
        self._folder, self._process = folder, process

    @classmethod
    def start(
        cls, folder: JobFolder, arguments: list[str], settings: Settings, tied: bool, processes: int = 1
    ) -> TrainingProcess:
        """`tied`: the training dies with the calling thread, and has a fencing file. Otherwise it can be adopted.

        `processes`: how many processes `--processes` starts. They share the threads of a training, and die with it.
        """
        folder.path.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "training", *arguments, "--quiet", f"--events={folder.events}"]
        command.append(f"--at-most={round(settings.training_seconds) + GRACE_SECONDS}")
        lock = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if tied:
                folder.fencing_file.touch()  # after locking: the service removes a fencing file without a lock
                command.append(f"--only-while={folder.fencing_file}")
            with folder.log.open("ab") as log:
                process = subprocess.Popen(  # noqa: S603  # validated arguments, no shell
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=_environment(settings, processes),
                    process_group=0,
                    pass_fds=(lock,),
                    preexec_fn=_die_with(os.getpid()) if tied else None,  # safe: a tied caller has one thread
                )
            os.pwrite(lock, b"%d\n" % process.pid, 0)
        finally:
            os.close(lock)
        lower_priority(process.pid)
        return cls(folder, process)

    @property
    def exit_code(self) -> int | None:
        """The exit code of a dead training. None if it is unknown: the training was a child of another process."""
        if self._process is None:
            return None
        with suppress(subprocess.TimeoutExpired):  # the lock is released shortly before the exit code is available
            self._process.wait(timeout=EXIT_SECONDS)
        return self._process.returncode

    def alive(self) -> bool:
        if self._process is not None:
            self._process.poll()  # reaps it
        return self._folder.is_locked()

    def signal(self, number: signal.Signals) -> None:
        """Signals the process group. While the lock is held a member of the group is alive, so its id is not reused."""
        group = self._group()
        if group is not None:
            restore_priority(group)
            with suppress(ProcessLookupError):
                os.killpg(group, number)
            if number == signal.SIGKILL:
                release_memory(group)

    def release_if_killed(self) -> None:
        """Speeds up the exit of a training that another process has killed. Does not affect a living training."""
        group = self._group()
        if group is not None and release_memory(group):
            restore_priority(group)

    def _group(self) -> int | None:
        """The process group of the training. None if the supervisor died just after the start: then the training ends at its
        time limit.
        """
        with suppress(OSError, ValueError):
            return int(self._folder.lock.read_text())
        return None


def _environment(settings: Settings, processes: int = 1) -> dict[str, str]:
    """The environment of the service without its settings, which contain secrets, except those that a training needs."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SGF_", "PROMETHEUS_"))}
    threads = max(1, (settings.training_threads or len(os.sched_getaffinity(0)) // 2) // processes)
    environ |= dict.fromkeys(THREAD_LIMITS, str(threads)) | {"SGF_DEVICE": settings.device}
    environ["SGF_DATA_ROOT"] = str(settings.data_root.resolve())
    if settings.graph_log == "redis":
        environ |= {"SGF_GRAPH_LOG": "redis", "SGF_REDIS_URL": settings.redis_url or ""}
        if settings.redis_password_file is not None:
            environ["SGF_REDIS_PASSWORD_FILE"] = str(settings.redis_password_file.resolve())
    return environ


def _die_with(parent: int) -> Callable[[], None]:
    prctl = ctypes.CDLL(None).prctl

    def set_up() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before prctl
            os._exit(1)

    return set_up


def lower_priority(pid: int) -> None:
    """Sets idle priority, which later threads inherit. If the system refuses, the training runs at normal priority."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, 19)
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))


def restore_priority(pid: int) -> None:
    """Sets all threads of a process to normal priority, so that it handles a signal without delay. Needs CAP_SYS_NICE;
    without it, does nothing.
    """
    threads: list[Path] = []
    with suppress(OSError):
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    for thread in threads:
        with suppress(OSError, AttributeError):  # a thread may have just ended
            os.sched_setscheduler(int(thread.name), os.SCHED_OTHER, os.sched_param(0))
            os.setpriority(os.PRIO_PROCESS, int(thread.name), 0)


def release_memory(pid: int) -> bool:
    """Frees the memory of a killed process of the same user, at the priority of the caller. Returns True if it did.

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
