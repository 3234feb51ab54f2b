from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy import image
from tests.deploy.storage import PARENT, storage
from tests.deploy.tools import need
from tests.service.conftest import store

__all__ = ["store"]


@pytest.fixture(scope="session")
def serving_root() -> Iterator[Path]:
    """Of a container of the serving image, which is built."""
    for program in ("buildah", "debootstrap", "unshare", "setpriv"):
        need(program)
    assert os.geteuid() == 0, "building and mounting an image without a daemon needs root"
    with storage():
        image.build(image.SERVING)
        with image.mounted(image.SERVING) as found:
            yield found


@pytest.fixture(scope="session")
def worker_root(serving_root: Path) -> Iterator[Path]:
    """Of a container of the worker's image, which is built."""
    free = shutil.disk_usage(PARENT).free
    assert free > 8e9, f"the worker's image needs 8 GB, {free / 1e9:.0f} GB are free below {PARENT}"
    image.build(image.WORKER, "--target", "worker")
    with image.mounted(image.WORKER) as found:
        yield found
