"""The number of CPUs that this process may use, so that a training starts no more threads than can run."""

from __future__ import annotations

import math
import os
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def limit_threads(processes: int = 1) -> None:
    """Sets the variables that torch reads when it is imported, unless they are set.

    By default the threads of torch spin while they wait, and on a busy machine take the cores of the threads they wait for.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if processes > 1 or available_cpus() < len(os.sched_getaffinity(0)):
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, available_cpus() // processes)))


def available_cpus(cgroups: Path = CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """The CPUs by the affinity of the process and by the CPU quota of its control groups, which torch does not read.

    A container with 2 CPUs of a machine with 64 would otherwise start 64 threads, which the kernel stops for most of the
    time while others wait for them.
    """
    affinity = len(os.sched_getaffinity(0))
    return max(1, min([affinity, *(math.ceil(quota) for quota in _quotas(cgroups, own))]))


def _quotas(cgroups: Path, own: Path) -> list[float]:
    """The limits of the control group of this process and of those around it, in CPUs. Reads cgroup v1 and v2."""
    try:
        groups = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return []
    quotas = []
    for _, controllers, path in groups:
        root = cgroups if not controllers else cgroups / "cpu"
        if controllers and "cpu" not in controllers.split(","):
            continue
        folder = root / path.lstrip("/")
        quotas += [_quota(place) for place in (folder, *folder.parents) if place.is_relative_to(root)]
    return [quota for quota in quotas if quota]


def _quota(folder: Path) -> float | None:
    """None if the group has no limit, or is not visible from inside a container."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return float(quota) / float(period) if float(quota) > 0 else None
    except (OSError, ValueError):  # "max": no limit
        return None
