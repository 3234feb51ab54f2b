"""Where the metrics of all workers meet: a folder of files that is there as long as the server.

A server that is killed leaves its folder behind, but not its lock, which the kernel gives back: the next one removes it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from model_store.locks import exclusive, exclusive_unless_held

PREFIX, LOCK = "sgf-metrics-", "lock"
YOUNG_SECONDS = 60.0
"""A folder may be so young that its server has not locked it yet."""


@contextmanager
def metrics_folder() -> Iterator[Path]:
    _remove_leftovers(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name, exclusive(Path(name) / LOCK):
        yield Path(name)


def _remove_leftovers(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # it is not ours to remove, or somebody else was quicker
            found = folder.lstat()
            if found.st_uid != os.getuid() or time.time() - found.st_mtime < YOUNG_SECONDS:
                continue
            (folder / LOCK).touch()  # a server that was killed before it locked it left none
            with exclusive_unless_held(folder / LOCK) as dead:
                if dead:
                    shutil.rmtree(folder)
