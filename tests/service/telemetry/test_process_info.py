"""Memory of the container, by both versions of control groups, and by a real group if this machine permits one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.telemetry.process_info import CGROUPS, ContainerMemory, container_memory

LIMIT_BYTES = 512 * 2**20
HELD_BYTES = 100 * 2**20
USE_MEMORY = f"""
import os, sys
from pathlib import Path
from service.telemetry.process_info import container_memory
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
held = bytearray(os.urandom(2**20) * {HELD_BYTES // 2**20})
print(*container_memory())
"""


def write(folder: Path, limit_file: str, limit: str, statistics: str) -> None:
    folder.mkdir(parents=True)
    (folder / limit_file).write_text(limit)
    (folder / "memory.stat").write_text(statistics)


def test_version_2_with_the_name_of_the_group(tmp_path: Path) -> None:
    write(tmp_path / "system.slice/sgf", "memory.max", "1000\n", "anon 400\nfile 500\nshmem 50\ninactive_file 90\n")
    (tmp_path / "own").write_text("0::/system.slice/sgf\n")
    assert container_memory(tmp_path, tmp_path / "own") == ContainerMemory(450, 1000)


def test_version_2_in_a_container_whose_group_is_the_root(tmp_path: Path) -> None:
    write(tmp_path / "cgroups", "memory.max", "1000\n", "anon 400\nshmem 50\n")
    (tmp_path / "own").write_text("0::/docker/0123\n")
    assert container_memory(tmp_path / "cgroups", tmp_path / "own") == ContainerMemory(450, 1000)


def test_version_1(tmp_path: Path) -> None:
    statistics = "cache 500\nrss 7\nshmem 7\ntotal_cache 500\ntotal_rss 400\ntotal_shmem 50\n"
    write(tmp_path / "memory", "memory.limit_in_bytes", "1000\n", statistics)
    (tmp_path / "own").write_text("4:memory:/docker/0123\n1:cpu:/\n0::/\n")
    assert container_memory(tmp_path, tmp_path / "own") == ContainerMemory(450, 1000)


@pytest.mark.parametrize(("file", "limit"), [("memory.max", "max\n"), ("memory.max", "9223372036854771712\n")])
def test_no_limit(tmp_path: Path, file: str, limit: str) -> None:
    write(tmp_path / "cgroups", file, limit, "anon 400\n")
    (tmp_path / "own").write_text("0::/\n")
    assert container_memory(tmp_path / "cgroups", tmp_path / "own") is None
    assert container_memory(tmp_path / "nothing", tmp_path / "nothing") is None


def test_the_real_control_group_of_a_process() -> None:
    version_2 = (CGROUPS / "cgroup.controllers").exists()
    folder = CGROUPS / ("" if version_2 else "memory") / f"sgf-test-{os.getpid()}"
    limit_file = folder / ("memory.max" if version_2 else "memory.limit_in_bytes")
    try:
        folder.mkdir()
        limit_file.write_text(str(LIMIT_BYTES))
    except OSError as error:
        if folder.exists():
            folder.rmdir()
        pytest.skip(f"NOT RUN: this machine does not permit a new control group ({error.strerror})")
    try:
        done = subprocess.run([sys.executable, "-c", USE_MEMORY, folder], capture_output=True, text=True, check=True)
    finally:
        folder.rmdir()
    used, limit = map(int, done.stdout.split())
    assert limit == LIMIT_BYTES
    assert HELD_BYTES <= used < LIMIT_BYTES
