"""Where buildah keeps what the checks build: a place of its own, gone afterwards.

The base that the images are built on has a name of Docker Hub and is not from there. In the machine's own storage, the next
`buildah` or `podman` of anybody here would take it for Debian's.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.deploy.tools import run

PARENT = Path("/var/tmp")  # noqa: S108  # gigabytes: on disk, where /tmp may be memory
_place: Path | None = None


@contextmanager
def storage() -> Iterator[Path]:
    """A fresh one, that `buildah` uses until the block ends."""
    global _place
    assert _place is None, "there is one already"
    _place = Path(tempfile.mkdtemp(prefix="verify-deploy-", dir=PARENT))
    try:
        yield _place
    finally:
        buildah("rm", "--all", check=False)
        mounted = (line.split()[1] for line in Path("/proc/mounts").read_text().splitlines())
        for point in sorted((one for one in mounted if one.startswith(f"{_place}/")), reverse=True):
            run("umount", point, check=False)  # the driver mounts its own folder
        shutil.rmtree(_place)
        _place = None


def buildah(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """In that storage. Raises AssertionError with the output of what failed."""
    assert _place is not None, "nothing is built outside of a storage of its own"
    return run("buildah", "--root", _place / "images", "--runroot", _place / "run", *arguments, **options)
