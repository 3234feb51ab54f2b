"""Eight readers, two publishers and a pruner at once: no reader sees an inconsistent version.

Runs for five seconds, or for a minute in `make soak` (SGF_CROWD_SECONDS).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from model_store import Store
from tests.model_store.versions.crowd import publish

SECONDS = float(os.environ.get("SGF_CROWD_SECONDS", "5"))


def test_concurrent_readers_publishers_and_a_pruner(tmp_path: Path) -> None:
    publish(Store(tmp_path), 0)
    roles = ["reader"] * 8 + ["publisher"] * 2 + ["pruner"]
    command = [sys.executable, "-m", "tests.model_store.versions.crowd"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    crowd = [subprocess.Popen([*command, role, str(tmp_path), str(SECONDS)], text=True, **pipes) for role in roles]
    for process in crowd:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()[1]  # publishers load torch and take longer
    for process in crowd:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    results = [process.communicate() for process in crowd]
    for role, process, (_, errors) in zip(roles, crowd, results, strict=True):
        assert process.returncode == 0, f"{role}: {errors}"
    turns, marks = zip(*(map(int, output.split()) for output, _ in results), strict=True)
    assert max(marks[:8]) > 2, f"no reader saw versions change: {marks}"
    versions = Store(tmp_path).model("demo")
    assert versions.versions()[-1] == 1 + sum(turns[8:10]), "two publishers took the same number, or one lost its own"
    versions.prune(keep=2)
    assert len(versions.versions()) <= 4
