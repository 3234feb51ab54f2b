"""The identities of processes and the memory of their container, as the kernel reports them, and the folder of the metrics.

An identity is the number and the start time of a process: in a container the server is always process 1, so the number alone
would not tell two servers apart. All workers of a server keep their metrics in one folder, named after its identity. This
module must not import prometheus_client: the folder must exist before that import.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

FOLDER_VARIABLE, FOLDER_PREFIX = "PROMETHEUS_MULTIPROC_DIR", "sgf-metrics-"
CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
CGROUP_LAYOUTS = (
    ("", "memory.max", ("anon", "shmem")),  # version 2
    ("memory", "memory.limit_in_bytes", ("total_rss", "total_shmem")),  # version 1
)
UNLIMITED_BYTES = 2**60
"""Version 1 states "no limit" as a very large number."""


class ContainerMemory(NamedTuple):
    used_bytes: int
    """Without page cache, such as mapped snapshots, which the kernel can drop."""
    limit_bytes: int


def container_memory(cgroups: Path = CGROUPS, own_cgroups: Path = OWN_CGROUPS) -> ContainerMemory | None:
    """Memory of the control group of this process. None if it has no limit, or if there are no control groups."""
    try:
        groups = [line.split(":", 2) for line in own_cgroups.read_text().splitlines()]
    except OSError:
        return None
    for controller, limit_file, parts in CGROUP_LAYOUTS:
        names = [name.lstrip("/") for _, controllers, name in groups if controllers == controller]
        for name in (*names, ""):  # a container may see its own group as the root
            folder = cgroups / controller / name
            try:
                limit = (folder / limit_file).read_text().strip()
                statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            except OSError:
                continue
            if limit.isdecimal() and int(limit) < UNLIMITED_BYTES:
                return ContainerMemory(sum(int(statistics.get(part, 0)) for part in parts), int(limit))
    return None


def identity(process: int | str) -> str:
    """`<number>-<start time in ticks since boot>`, or `<number>-` if there is no such process."""
    try:
        after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2]  # the name may contain anything
        return f"{process}-{after_name.split()[19]}"
    except OSError:
        return f"{process}-"


def is_alive(process: str) -> bool:
    """True if the process with this identity runs."""
    number, _, start_time = process.partition("-")
    return start_time != "" and identity(number) == process


def owner_of(file: Path) -> str:
    """The identity of the worker that writes this file of metrics."""
    return file.stem.rpartition("_")[2]


@contextmanager
def metrics_folder() -> Iterator[Path]:
    """A folder that exists as long as the server. Removes the folders of servers that were killed."""
    remove_leftovers(Path(tempfile.gettempdir()))
    prefix = f"{FOLDER_PREFIX}{identity(os.getpid())}-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as name:
        yield Path(name)


def mark(name: str) -> bool:
    """Marks an event of this server, such as `ready`. True for the first worker that marks it."""
    folder = os.environ.get(FOLDER_VARIABLE)
    try:
        if folder is not None:
            (Path(folder) / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def is_marked(name: str) -> bool:
    """True if any worker of this server has marked the event."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return folder is not None and (Path(folder) / name).exists()


def remove_leftovers(parent: Path) -> None:
    for folder in parent.glob(f"{FOLDER_PREFIX}*"):
        server = folder.name.removeprefix(FOLDER_PREFIX).rpartition("-")[0]
        with suppress(OSError):  # another server removed it first
            users = {server, *map(owner_of, folder.glob("*.db"))}  # workers may outlive the server
            if folder.lstat().st_uid == os.getuid() and not any(map(is_alive, users)):
                shutil.rmtree(folder)
