"""Programs that the checks of the deployment run.

Where a program is missing, `make test` skips the test and says why; `make verify-deploy`, which installs them, fails.
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

thorough = pytest.mark.skipif(
    not VERIFYING, reason="NOT RUN: needs minutes, and root or a Docker engine; `make verify-deploy` runs it"
)


def need(program: str) -> str:
    """Returns the path of a program: the pinned one of this environment, or the machine's. Skips or fails without it."""
    path = shutil.which(program, path=str(Path(sys.executable).parent)) or shutil.which(program)
    if path is None:
        message = f"NOT RUN: {program} is not installed; deploy/install-verify-tools (as root) installs it"
        if VERIFYING:
            pytest.fail(message)
        pytest.skip(message)
    return path


def run(*command: str | Path, check: bool = True, seconds: float = 60, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a program, with its output as text. Raises AssertionError with that output if it fails."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=seconds, **options)
    assert not check or done.returncode == 0, f"{command[0]} failed:\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    return done
