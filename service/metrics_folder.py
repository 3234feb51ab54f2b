"""Where the metrics of all workers meet: a folder of files that is there as long as the server.

A server that is killed leaves its folder behind; the next one that starts removes it. A folder's name has the number of the
server's process, and the files in it those of the workers, who may outlive it.
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
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def remove_leftovers(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # somebody else was quicker
            if folder.lstat().st_uid == os.getuid() and not any(map(_lives, _processes(folder))):
                shutil.rmtree(folder)


def _processes(folder: Path) -> set[str]:
    server = folder.name.removeprefix(PREFIX).partition("-")[0]
    return {server, *(path.stem.rpartition("_")[2] for path in folder.glob("*.db"))}


def _lives(process: str) -> bool:
    return Path(f"/proc/{process}").exists()
