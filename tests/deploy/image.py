"""The image, really built and really run, without a Docker engine.

buildah builds it in a chroot. Its base is made by debootstrap, from the same Debian release, and stored under the name that
the Dockerfile's FROM has. What this machine needs to reach a package registry (registry.py) is mounted while it builds, and
is not in the image.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import httpx

from tests.deploy import registry
from tests.deploy.tools import ROOT, run
from tests.service.serving import free_port, until

SERVING, WORKER = "sgformer-serving:verify", "sgformer-worker:verify"
RELEASE = "bookworm"
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
LEFT_OUT_OF_SLIM = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "var/cache/apt",
    "var/lib/apt/lists",
)
"""What Debian's -slim images leave out."""
INSIDE = r"""
set -eu
mount --bind {root} {root}
mount --bind {store} {root}/var/lib/sgformer/store
mount -t tmpfs -o mode=1777,size=64m tmpfs {root}/tmp
mount -t proc proc {root}/proc
mount --rbind /dev {root}/dev
mount -o remount,ro,bind {root}
exec chroot {root} setpriv --reuid {uid} --regid {gid} --clear-groups --bounding-set=-all --no-new-privs \
    env -i -C {folder} {environ} {command}
"""


def base_name() -> str:
    """What the Dockerfile's first FROM asks for."""
    release = re.search(r"^ARG DEBIAN=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert release is not None
    return f"docker.io/library/debian:{release[1]}"


def make_base() -> None:
    """A stand-in for the base image, unless there is one."""
    if run("buildah", "images", "--quiet", base_name(), check=False).returncode == 0:
        return
    with tempfile.TemporaryDirectory(prefix="base-") as folder:
        run("debootstrap", "--variant=minbase", RELEASE, folder, MIRROR, seconds=600)
        for path in LEFT_OUT_OF_SLIM:
            run("find", f"{folder}/{path}", "-mindepth", "1", "-delete")
        container = run("buildah", "from", "scratch").stdout.strip()
        run("buildah", "add", "--quiet", container, folder, "/", seconds=300)
        run("buildah", "config", "--cmd", "bash", container)
        run("buildah", "commit", "--quiet", "--rm", container, base_name(), seconds=300)


def build(tag: str, *options: str, context: Path = ROOT) -> None:
    """As `docker build -t TAG OPTIONS .` would. Raises AssertionError with its output."""
    make_base()
    with tempfile.TemporaryDirectory(prefix="registry-") as folder:
        command = [
            "buildah",
            "bud",
            "--isolation",
            "chroot",
            "--network",
            "host",
            "--format",
            "docker",
            "--pull-never",
            "--layers",
        ]
        volumes = [f"--volume={here}:{inside}:ro" for here, inside in registry.mounts(Path(folder)).items()]
        run(*command, *volumes, "--tag", tag, *options, context, seconds=1200)


def size_bytes(tag: str) -> int:
    with mounted(tag) as root:
        return int(run("du", "--summarize", "--bytes", "--one-file-system", root).stdout.split()[0])


def configuration(tag: str) -> dict[str, Any]:
    """Entrypoint, user, environment, labels, health check."""
    found: dict[str, Any] = json.loads(run("buildah", "inspect", "--type", "image", tag).stdout)["Docker"]["config"]
    return found


@contextmanager
def mounted(tag: str) -> Iterator[Path]:
    """The root of a fresh container of the image."""
    container = run("buildah", "from", "--pull-never", tag).stdout.strip()
    try:
        yield Path(run("buildah", "mount", container).stdout.strip())
    finally:
        run("buildah", "rm", container)


def inside(root: Path, tag: str, store: Path, command: list[str], log: IO[str], **environ: str) -> subprocess.Popen[bytes]:
    """A command in the image: its user, process 1, no capabilities, the root file system read-only but for /tmp.

    What it says goes into a file, not a pipe: a pipe that nobody reads fills up, and everything stands still.
    """
    config = configuration(tag)
    pairs = [*config["Env"], *(f"{name}={value}" for name, value in environ.items())]
    uid, _, gid = config["User"].partition(":")
    script = INSIDE.format(
        root=root,
        store=store,
        uid=uid,
        gid=gid,
        folder=config["WorkingDir"],
        environ=shlex.join(pairs),
        command=shlex.join(command),
    )
    isolated = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", script]
    return subprocess.Popen(isolated, stdout=log, stderr=subprocess.STDOUT)


def owned(volume: Path, tag: str) -> Path:
    """As a container's engine would hand it to the image's user."""
    run("chown", "-R", configuration(tag)["User"], volume)
    return volume


def done_inside(
    root: Path, tag: str, store: Path, command: list[str], seconds: float = 60, **environ: str
) -> tuple[int, str]:
    """The exit code and the output of a command that ends."""
    with tempfile.TemporaryFile("w+") as log:
        code = inside(root, tag, store, command, log, **environ).wait(timeout=seconds)
        log.seek(0)
        return code, log.read()


class Container:
    """The image's entrypoint, running."""

    def __init__(self, root: Path, tag: str, store: Path, **environ: str) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # until `close`
        self.process = inside(root, tag, store, configuration(tag)["Entrypoint"], self._log, **environ)

    @property
    def pid(self) -> int:
        """Of its process 1, as the machine sees it."""
        parent = self.process.pid
        return int(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0])

    def check_confined(self) -> None:
        """Raises AssertionError: it is root, may become it, has capabilities, or can write to its root file system."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        assert "Uid:\t10001\t10001\t10001\t10001" in status
        assert "CapEff:\t0000000000000000" in status
        assert "NoNewPrivs:\t1" in status
        mounts = Path(f"/proc/{self.pid}/mountinfo").read_text().splitlines()
        options = {line.split()[4]: line.split()[5].split(",") for line in mounts}
        assert "ro" in options["/"]

    def terminate(self, seconds: float = 20) -> int:
        os.kill(self.pid, signal.SIGTERM)
        return self.process.wait(timeout=seconds)

    def output(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def close(self) -> None:
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)  # with process 1 goes everything inside
        self.process.wait(timeout=10)
        self._log.close()


class Service(Container):
    """The serving image, and a client of it."""

    def __init__(self, root: Path, tag: str, store: Path, **environ: str) -> None:
        port = free_port()
        super().__init__(root, tag, store, SGF_PORT=str(port), **environ)
        self.port, self.client = port, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10)

    def wait(self, seconds: float = 60) -> None:
        until(lambda: self.process.poll() is not None or self._ready(), seconds=seconds)
        assert self.process.poll() is None, self.output()

    def close(self) -> None:
        self.client.close()
        super().close()

    def _ready(self) -> bool:
        try:
            return self.client.get("/health/ready").status_code == 200
        except httpx.TransportError:
            return False
