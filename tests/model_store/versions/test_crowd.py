"""Eight readers, two publishers and a pruner at once: no reader ever sees an inconsistent version.

Some seconds here; a minute in `make soak` (SGF_CROWD_SECONDS).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from model_store import Store
from tests.model_store.versions.crowd import publish

SECONDS = float(os.environ.get("SGF_CROWD_SECONDS", "5"))


def test_a_crowd_around_one_store(tmp_path: Path) -> None:
    publish(Store(tmp_path), 0)
    roles = ["reader"] * 8 + ["publisher"] * 2 + ["pruner"]
    command = [sys.executable, "-m", "tests.model_store.versions.crowd"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    crowd = [subprocess.Popen([*command, role, str(tmp_path), str(SECONDS)], text=True, **pipes) for role in roles]
    for one in crowd:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n", one.communicate()[1]  # those who load torch take longer
    for one in crowd:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    results = [one.communicate() for one in crowd]
    for role, one, (_, errors) in zip(roles, crowd, results, strict=True):
        assert one.returncode == 0, f"{role}: {errors}"
    turns, marks = zip(*(map(int, output.split()) for output, _ in results), strict=True)
    assert max(marks[:8]) > 2, f"no reader saw versions change: {marks}"
    versions = Store(tmp_path).model("demo")
    assert versions.versions()[-1] == 1 + sum(turns[8:10]), "two publishers took the same number, or one lost its own"
    versions.prune(keep=2)
    assert len(versions.versions()) <= 4
