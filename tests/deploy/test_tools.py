"""The installer of what `make verify-deploy` runs: says what it cannot install, and takes no kubectl but the pinned one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.deploy.tools import ROOT, run, thorough

INSTALLER = ROOT / "deploy" / "install-verify-tools"


def install(clone: Path, text: str, **programs: str) -> subprocess.CompletedProcess[str]:
    """The installer's text in a clone of its own, with some programs of the machine replaced by these scripts."""
    replaced = clone / "programs"
    for folder in (replaced, clone / "deploy", clone / ".venv" / "bin"):
        folder.mkdir(parents=True)
    (clone / "deploy" / "install").write_text(text)
    (clone / ".venv" / "bin" / "pip").symlink_to(Path(sys.executable).with_name("pip"))
    for program, script in programs.items():
        (replaced / program).write_text(f"#!/bin/sh\n{script}\n")
        (replaced / program).chmod(0o755)
    environ = os.environ | {"PATH": f"{replaced}:{os.environ['PATH']}"}
    return run("bash", clone / "deploy" / "install", check=False, env=environ)


def test_whoever_is_not_root_is_told_what_is_missing(tmp_path: Path) -> None:
    apt = {"apt-get": f"touch {tmp_path}/called"}
    told = install(tmp_path, INSTALLER.read_text(), dpkg="exit 1", id="echo 1000", **apt)
    assert told.returncode == 1
    assert "needs debootstrap" in told.stderr
    assert not (tmp_path / "called").exists()


@thorough
def test_kubectl_is_installed_unless_its_hash_is_another(tmp_path: Path) -> None:
    text = INSTALLER.read_text()
    for place, hash_of_it in (("right", "sha256:dd44"), ("wrong", "sha256:dd45")):
        (tmp_path / place).mkdir()
        told = install(tmp_path / place, text.replace("sha256:dd44", hash_of_it), dpkg="exit 0")
        kubectl = tmp_path / place / ".venv" / "bin" / "kubectl"
        assert (told.returncode == 0) == kubectl.exists() == (place == "right"), told.stderr
    assert "DO NOT MATCH THE HASHES" in told.stderr
    assert "v1.32" in run(tmp_path / "right" / ".venv" / "bin" / "kubectl", "version", "--client").stdout
