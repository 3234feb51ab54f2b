"""sha256 of many files at once. hashlib lets go of the interpreter while it hashes, so threads are enough."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def sha256_of(path: Path) -> str:
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_all(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """By name. The largest files go first, so that none of them is left for the end."""
    largest_first = sorted(names, key=lambda name: (folder / name).stat().st_size, reverse=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(largest_first, pool.map(lambda name: sha256_of(folder / name), largest_first), strict=True))
