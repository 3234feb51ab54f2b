"""The priority of a training, on a machine whose processors all have something better to do."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.jobs import priority
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


@pytest.fixture
def idle() -> Iterator[subprocess.Popen[bytes]]:
    """A process with two threads and 200 MB, at the lowest priority."""
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for thread in threads(process.pid):  # a training is lowered before it has others, which inherit it
            priority.lower(thread)
        yield process
        priority.put_back(process.pid)
        process.kill()


def threads(pid: int) -> list[int]:
    return [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_every_thread_gets_its_priority_back_where_that_is_allowed(idle: subprocess.Popen[bytes]) -> None:
    assert {os.sched_getscheduler(thread) for thread in threads(idle.pid)} == {os.SCHED_IDLE}
    assert len(threads(idle.pid)) == 2
    priority.put_back(idle.pid)
    expected = (os.SCHED_OTHER, 0) if os.geteuid() == 0 else (os.SCHED_IDLE, 19)
    for thread in threads(idle.pid):
        assert (os.sched_getscheduler(thread), os.getpriority(os.PRIO_PROCESS, thread)) == expected


@pytest.mark.skipif(
    tuple(map(int, platform.release().split(".")[:2])) < (5, 15), reason="NOT RUN: Linux before 5.15 has no process_mrelease"
)
def test_the_memory_of_a_killed_one_is_freed_by_us_and_not_at_its_own_pace(idle: subprocess.Popen[bytes]) -> None:
    with busy_machine():
        assert resident_bytes(idle.pid) > 200 * MEGABYTE
        idle.send_signal(signal.SIGKILL)
        priority.release_memory(idle.pid)
        assert resident_bytes(idle.pid) < 20 * MEGABYTE


def test_a_process_that_is_gone_is_nobody_s_trouble(idle: subprocess.Popen[bytes]) -> None:
    idle.kill()
    idle.wait()
    priority.lower(idle.pid)
    priority.put_back(idle.pid)
    priority.release_memory(idle.pid)
