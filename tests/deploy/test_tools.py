"""deploy/install-verify-tools: without root it names what is missing, and it installs only the pinned kubectl."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.deploy.tools import ROOT, run, thorough

INSTALLER = ROOT / "deploy" / "install-verify-tools"


def install(clone: Path, text: str, **programs: str) -> subprocess.CompletedProcess[str]:
    """Runs the installer in a folder of its own, with programs of the machine replaced by scripts."""
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


def test_without_root_the_missing_packages_are_named(tmp_path: Path) -> None:
    apt = {"apt-get": f"touch {tmp_path}/called"}
    done = install(tmp_path, INSTALLER.read_text(), dpkg="exit 1", id="echo 1000", **apt)
    assert done.returncode == 1
    assert "needs debootstrap" in done.stderr
    assert not (tmp_path / "called").exists()


@thorough
def test_kubectl_with_another_hash_is_not_installed(tmp_path: Path) -> None:
    for name, digest in (("right", "sha256:dd44"), ("wrong", "sha256:dd45")):
        (tmp_path / name).mkdir()
        done = install(tmp_path / name, INSTALLER.read_text().replace("sha256:dd44", digest), dpkg="exit 0")
        kubectl = tmp_path / name / ".venv" / "bin" / "kubectl"
        assert (done.returncode == 0) == kubectl.exists() == (name == "right"), done.stderr
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert "v1.32" in run(tmp_path / "right" / ".venv" / "bin" / "kubectl", "version", "--client").stdout
