"""The folder in which all workers of a server keep their metrics. It exists as long as the server.

A server that is killed leaves its folder behind; the next server that starts removes it. The name of a folder has the
identity of the server's process, and the files in it those of the workers, which may outlive the server. An identity is the
number and the start time of a process: in a container the server is always process 1, so the number alone is not enough.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "sgf-metrics-"


@contextmanager
def metrics_folder() -> Iterator[Path]:
    remove_leftovers(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{identity(os.getpid())}-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def remove_leftovers(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another server removed it first
            if folder.lstat().st_uid == os.getuid() and not any(map(is_alive, _processes(folder))):
                shutil.rmtree(folder)


def identity(process: int | str) -> str:
    """`<number>-<start time in ticks since boot>`: field 22 of /proc/<number>/stat. Without the time: no such process."""
    try:
        after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2]  # the name may contain anything
        return f"{process}-{after_name.split()[19]}"
    except OSError:
        return f"{process}-"


def is_alive(process: str) -> bool:
    """Whether the process of this identity still runs."""
    number, _, started = process.partition("-")
    return started != "" and identity(number) == process


def _processes(folder: Path) -> set[str]:
    server = folder.name.removeprefix(PREFIX).rpartition("-")[0]
    return {server, *(path.stem.rpartition("_")[2] for path in folder.glob("*.db"))}
