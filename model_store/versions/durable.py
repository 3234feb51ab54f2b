"""Durable writes: after a power cut, a file has its old content or its new content, never a mixture."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_durably(path: Path, content: bytes) -> None:
    """Replaces a small file: writes a temporary file beside it, flushes it, and renames it."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(6)}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def make_folder(path: Path) -> None:
    """Creates a folder and its missing parents, each durably."""
    if not path.exists():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def sync(path: Path) -> None:
    """Flushes a file, or the entries of a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Flushes everything in a folder, then the folder itself."""
    for path in folder.iterdir():
        (sync_tree if path.is_dir() else sync)(path)
    sync(folder)
