"""Whether a process is as confined as the deployment says that ours are."""

from __future__ import annotations

from pathlib import Path

NEEDED_STATUS = {"Uid": "10001\t10001\t10001\t10001", "CapEff": "0000000000000000", "NoNewPrivs": "1"}


def check_confined(pid: int) -> None:
    """Raises AssertionError: it is root, may become it, has capabilities, or can write to its root file system."""
    told = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
    mounts = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
    check_status(told, {fields[4]: fields[5].split(",") for fields in mounts})


def check_status(status: dict[str, str], mounts: dict[str, list[str]]) -> None:
    """Of /proc/PID/status its fields, of mountinfo the options of each place."""
    for name, value in NEEDED_STATUS.items():
        assert status[name] == value, f"{name} is {status[name]}, not {value}"
    assert "ro" in mounts["/"], f"/ is mounted {mounts['/']}"
