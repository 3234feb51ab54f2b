"""A Docker engine for `make verify-deploy`, and the two programs that talk to it: docker and Compose.

The checks use the machine's engine if it answers. Otherwise `own_engine` starts an engine, as root, with its data and its
socket in a temporary folder, and stops it at the end.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.tools import ROOT, need, run
from tests.service.serving import until

PARENT = "/var/tmp"  # noqa: S108  # gigabytes: on disk, where /tmp may be memory
FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
Result = subprocess.CompletedProcess[str]


def docker(*arguments: str | Path, **options: Any) -> Result:
    """Runs the docker command. Raises AssertionError with its output where it fails."""
    return run(need("docker"), *arguments, **options)


def engine_answers() -> bool:
    return docker("version", "--format", "{{.Server.Version}}", check=False).returncode == 0


@contextmanager
def own_engine() -> Iterator[None]:
    """Starts an engine that `docker` and `Compose` use until the block ends."""
    if os.geteuid() != 0:
        pytest.fail("no Docker engine answers, and only root can start an engine")
    folder = Path(tempfile.mkdtemp(prefix="verify-deploy-", dir=PARENT))
    socket = f"unix://{folder}/docker.sock"
    options = [f"--data-root={folder}/data", f"--exec-root={folder}/run", f"--pidfile={folder}/pid", f"--host={socket}"]
    options += ["--storage-driver=overlay2", "--bridge=none"]  # builds use the machine's network, Compose makes its own
    with unchanged_forwarding(), pytest.MonkeyPatch.context() as patch, (folder / "log").open("w") as log:
        patch.setenv("DOCKER_HOST", socket)
        with subprocess.Popen([need("dockerd"), *options], stdout=log, stderr=log) as process:
            try:
                until(lambda: process.poll() is not None or engine_answers())
                assert process.poll() is None, f"dockerd did not start:\n{(folder / 'log').read_text()[-3000:]}"
                yield
            finally:
                process.terminate()
                process.wait(timeout=60)
    remove(folder)


@contextmanager
def unchanged_forwarding() -> Iterator[None]:
    """Restores what an engine changes and leaves: the rules of iptables, and whether the machine forwards packets."""
    rules, is_forwarding = run(need("iptables-save")).stdout, FORWARDING.read_text()
    try:
        yield
    finally:
        run(need("iptables-restore"), input=rules)
        FORWARDING.write_text(is_forwarding)


def remove(folder: Path) -> None:
    """Removes the folder of an engine that has ended, which leaves file systems mounted in it."""
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for place in sorted((place for place in mounted if place.startswith(f"{folder}/")), reverse=True):
        run("umount", place)
    shutil.rmtree(folder)


@functools.cache
def compose_command() -> list[str]:
    """Compose as a plugin of docker, or as a program of its own."""
    plugin = shutil.which("docker") and docker("compose", "version", check=False).returncode == 0
    return ["docker", "compose"] if plugin else [need("docker-compose")]


class Compose:
    """The compose file as it is, with a project name and a .env file of its own."""

    def __init__(self, env_file: Path, **variables: str) -> None:
        self.env_file, self.variables = env_file, variables
        env_file.write_text("".join(f"{name}={value}\n" for name, value in variables.items()))

    def __call__(self, *arguments: str, seconds: float = 300, **variables: str) -> str:
        """Runs Compose with variables that go over .env. Raises AssertionError where it fails."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("SGF_", "COMPOSE_"))}
        command = [*compose_command(), "--project-name", "sgformer-verify", "--env-file", self.env_file, *arguments]
        return run(*command, seconds=seconds, cwd=ROOT, env=environ | variables).stdout

    def container(self, service: str) -> str:
        """The id of the service's container, running or not."""
        return self("ps", "--all", "--quiet", service).strip()

    def inside(self, service: str, *command: str, check: bool = True) -> Result:
        """Runs a command in the service's container."""
        return docker("exec", self.container(service), *command, check=check)
