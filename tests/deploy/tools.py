"""Programs that the checks of the deployment run, and what happens where one is missing.

`make test` goes on without them and says which check did not run and why; `make verify-deploy` has installed them, and
fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
VERIFYING = os.environ.get("VERIFY_DEPLOY") == "1"

thorough = pytest.mark.skipif(not VERIFYING, reason="NOT RUN: takes minutes or root; `make verify-deploy` runs it")


def need(program: str) -> str:
    """Its path: the one of this environment, which is pinned, before the machine's.

    Where it is missing the test is skipped, loudly; under `make verify-deploy` it fails.
    """
    found = shutil.which(program, path=str(Path(sys.executable).parent)) or shutil.which(program)
    if found is None:
        told = f"NOT RUN: {program} is not installed; deploy/install-verify-tools (as root) installs it"
        if VERIFYING:
            pytest.fail(told)
        pytest.skip(told)
    return found


def run(*command: str | Path, check: bool = True, seconds: float = 60, **options: Any) -> subprocess.CompletedProcess[str]:
    """A program, its output as text. Raises AssertionError with that output where it fails."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=seconds, **options)
    assert not check or done.returncode == 0, f"{command[0]} failed:\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    return done
