"""What the container and the file system of the store have, and how much of it is used."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

CGROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
LAYOUTS = (
    ("", "memory.max", ("anon", "shmem")),  # version 2
    ("memory", "memory.limit_in_bytes", ("total_rss", "total_shmem")),  # version 1
)
UNLIMITED_BYTES = 2**60
"""Version 1 has no word for "no limit", only a very large number."""


class ContainerMemory(NamedTuple):
    used_bytes: int
    """Memory that the kernel cannot drop: page cache, such as a mapped snapshot, is left out."""
    limit_bytes: int


def container_memory(cgroups: Path = CGROUPS, own_groups: Path = OWN_GROUPS) -> ContainerMemory | None:
    """Of the control group of this process. None: it has no limit, or the system has no control groups."""
    try:
        groups = [line.split(":", 2) for line in own_groups.read_text().splitlines()]
    except OSError:
        return None
    for controller, limit_file, parts in LAYOUTS:
        own = [group.lstrip("/") for _, controllers, group in groups if controllers == controller]
        for group in (*own, ""):  # a container may see its own group as the root, whatever its name outside is
            folder = cgroups / controller / group
            try:
                limit = (folder / limit_file).read_text().strip()
                statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            except OSError:
                continue
            if limit.isdecimal() and int(limit) < UNLIMITED_BYTES:
                return ContainerMemory(sum(int(statistics.get(part, 0)) for part in parts), int(limit))
    return None
