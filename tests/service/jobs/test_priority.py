"""The priority of a training on a busy machine."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.jobs.job_folder import JobFolder
from service.jobs.training_process import TrainingProcess, lower_priority, release_memory, restore_priority
from service.settings import Settings
from tests.service.jobs.retraining import busy_machine

MEGABYTE = 2**20
HOLDER = """
import threading
memory = bytearray(b"x") * (200 * 2**20)
threading.Thread(target=threading.Event().wait, daemon=True).start()
print("ready", flush=True)
while True:
    pass
"""


since_5_15 = pytest.mark.skipif(
    tuple(map(int, platform.release().split(".")[:2])) < (5, 15), reason="NOT RUN: Linux before 5.15 has no process_mrelease"
)


@pytest.fixture
def idle() -> Iterator[subprocess.Popen[bytes]]:
    """A process with two threads and 200 MB, at the lowest priority."""
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for thread in threads(process.pid):  # a training is lowered before it starts threads, which inherit it
            lower_priority(thread)
        yield process
        restore_priority(process.pid)
        process.kill()


def threads(pid: int) -> list[int]:
    return [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def may_raise_priorities() -> bool:
    """Whether this process has CAP_SYS_NICE; root may lack it in a container."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as scratch:
        try:
            lower_priority(scratch.pid)
            os.sched_setscheduler(scratch.pid, os.SCHED_OTHER, os.sched_param(0))
            os.setpriority(os.PRIO_PROCESS, scratch.pid, 0)
        except PermissionError:
            return False
        finally:
            scratch.kill()
    return True


def test_restore_sets_every_thread_to_normal_priority_if_permitted(idle: subprocess.Popen[bytes]) -> None:
    assert {os.sched_getscheduler(thread) for thread in threads(idle.pid)} == {os.SCHED_IDLE}
    assert len(threads(idle.pid)) == 2
    restore_priority(idle.pid)
    expected = (os.SCHED_OTHER, 0) if may_raise_priorities() else (os.SCHED_IDLE, 19)
    for thread in threads(idle.pid):
        assert (os.sched_getscheduler(thread), os.getpriority(os.PRIO_PROCESS, thread)) == expected


def test_restore_skips_a_thread_that_has_just_ended(idle: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    set_scheduler, tried = os.sched_setscheduler, list[int]()

    def fail_for_the_first_thread(thread: int, policy: int, param: os.sched_param) -> None:
        tried.append(thread)
        if len(tried) == 1:
            raise ProcessLookupError
        set_scheduler(thread, policy, param)

    monkeypatch.setattr(os, "sched_setscheduler", fail_for_the_first_thread)
    restore_priority(idle.pid)
    assert sorted(tried) == sorted(threads(idle.pid))


def test_the_memory_of_a_living_process_is_not_released(idle: subprocess.Popen[bytes]) -> None:
    before = resident_bytes(idle.pid)
    assert release_memory(idle.pid) is False
    idle.send_signal(signal.SIGSTOP)
    assert release_memory(idle.pid) is False, "nor of a stopped process"
    idle.send_signal(signal.SIGCONT)
    assert resident_bytes(idle.pid) >= before > 200 * MEGABYTE
    assert idle.poll() is None


@since_5_15
def test_the_memory_of_a_killed_process_is_released_by_the_caller(idle: subprocess.Popen[bytes]) -> None:
    with busy_machine():
        assert resident_bytes(idle.pid) > 200 * MEGABYTE
        idle.send_signal(signal.SIGKILL)
        assert release_memory(idle.pid) is True
        assert resident_bytes(idle.pid) < 20 * MEGABYTE


@since_5_15
def test_release_if_killed_affects_only_a_killed_training(idle: subprocess.Popen[bytes], tmp_path: Path) -> None:
    folder = JobFolder(Settings(store=tmp_path), "job")
    folder.path.mkdir(parents=True)
    folder.lock.write_text(f"{idle.pid}\n")
    training = TrainingProcess(folder)
    training.release_if_killed()
    assert {os.sched_getscheduler(thread) for thread in threads(idle.pid)} == {os.SCHED_IDLE}, (
        "a living training keeps its idle priority"
    )
    with busy_machine():
        idle.send_signal(signal.SIGKILL)
        training.release_if_killed()
        assert resident_bytes(idle.pid) < 20 * MEGABYTE


def test_a_process_that_has_ended_is_ignored(idle: subprocess.Popen[bytes]) -> None:
    idle.kill()
    idle.wait()
    lower_priority(idle.pid)
    restore_priority(idle.pid)
    release_memory(idle.pid)
