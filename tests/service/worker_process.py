"""Starts `sgf-worker` in a separate process, as on another machine that shares the store."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple


class RunningWorker(NamedTuple):
    process: subprocess.Popen[str]
    lines: list[str]
    """The log so far."""


@contextmanager
def worker(folder: Path, url: str, **settings: str) -> Iterator[RunningWorker]:
    """Runs `sgf-worker`. The store is `models` in the folder, and the data is in `data`."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SGF_")}
    environ |= {"SGF_REDIS_URL": url, "SGF_STORE": str(folder / "models"), "SGF_DATA_ROOT": str(folder / "data")}
    environ |= {f"SGF_{name.upper()}": value for name, value in settings.items()}
    command = [sys.executable, "-m", "service.jobs.worker"]
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process:
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.extend(process.stderr or ()), daemon=True)
        reader.start()
        try:
            yield RunningWorker(process, lines)
        finally:
            process.kill()
            reader.join(timeout=60)
