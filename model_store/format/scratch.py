"""Files without a name, for arrays that exceed memory: the kernel removes them with the last process that has them open."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def scratch_files(folder: Path | None = None) -> Callable[[int], int]:
    """A function that creates a file of the given number of bytes and returns its descriptor.

    The file is in `folder`, by default in the folder for temporary files (TMPDIR). All of its blocks are allocated: a full
    disk raises OSError here instead of SIGBUS at a later write to a mapped page.
    """

    def open_file(size: int) -> int:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, size)
            return os.dup(file.fileno())

    return open_file
