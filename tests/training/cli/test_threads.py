"""A training starts as many threads as the control group lets run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from training.cli.threads import available_cpus

CPUS = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {}, CPUS),
        ("0::/\n", {"cpu.max": "max 100000\n"}, CPUS),
        ("0::/\n", {"cpu.max": "100000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "90000 100000\n"}, 1),
        ("0::/a\n", {"b/cpu.max": "100000 100000\n"}, CPUS),
        ("0::/\n", {"cpu.max": f"{100000 * CPUS * 8} 100000\n"}, CPUS),
        ("4:cpu,cpuacct:/x\n", {"cpu/x/cpu.cfs_quota_us": "100000\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, 1),
        ("4:cpu,cpuacct:/x\n", {"cpu/x/cpu.cfs_quota_us": "-1\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, CPUS),
        ("5:memory:/x\n", {"cpu/x/cpu.cfs_quota_us": "100000\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, CPUS),
    ],
)
def test_cpus_by_the_quota_of_the_control_group(tmp_path: Path, own: str, files: dict[str, str], expected: int) -> None:
    (tmp_path / "self").write_text(own)
    for name, text in files.items():
        (tmp_path / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / name).write_text(text)
    assert available_cpus(tmp_path / "fs", tmp_path / "self") == expected
