"""Writes that survive: after these functions return, a power cut finds the new content or the old, never a mixture."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_durably(path: Path, content: bytes) -> None:
    """Replaces a small file: written beside, flushed, renamed over."""
    beside = path.with_name(f".{path.name}-{secrets.token_hex(6)}")
    try:
        with beside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync(path.parent)


def make_folder(path: Path) -> None:
    """Makes a folder with its parents, each of them durably."""
    if not path.exists():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def sync(path: Path) -> None:
    """Flushes one file, or the entries of one folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Flushes everything in a folder, then the folder itself."""
    for path in folder.iterdir():
        if path.is_dir():
            sync_tree(path)
        else:
            sync(path)
    sync(folder)
