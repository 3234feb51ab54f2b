"""The image, really built and really run, without a Docker engine.

buildah builds it in a chroot. Its base is made by debootstrap, from the same Debian release, and stored under the name that
the Dockerfile's FROM has: in a storage of its own (storage.py), because it is not Debian's. What this machine needs to reach
a package registry (registry.py) is mounted while it builds, and is not in the image. Volumes and /tmp are those of compose.
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
from tests.deploy.compose_file import settled
from tests.deploy.confinement import check_confined
from tests.deploy.storage import buildah
from tests.deploy.tools import ROOT, run
from tests.service.serving import free_port, until

SERVING, WORKER = "sgformer-serving:verify", "sgformer-worker:verify"
COMPOSED = {SERVING: "service", WORKER: "worker"}
"""The service of compose whose volumes each is run with; with an admin token it is `admin`."""
REVISION = "0123456789abcdef0123456789abcdef01234567"
RELEASE = "bookworm"
MIRROR = [os.environ["DEBIAN_MIRROR"]] if "DEBIAN_MIRROR" in os.environ else []
"""Where debootstrap takes Debian from, if not from where it does by itself."""
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
{mounts}
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
    if buildah("images", "--quiet", base_name(), check=False).returncode == 0:
        return
    with tempfile.TemporaryDirectory(prefix="base-") as folder:
        run("debootstrap", "--variant=minbase", RELEASE, folder, *MIRROR, seconds=600)
        for path in LEFT_OUT_OF_SLIM:
            run("find", f"{folder}/{path}", "-mindepth", "1", "-delete")
        container = buildah("from", "scratch").stdout.strip()
        buildah("add", "--quiet", container, folder, "/", seconds=300)
        buildah("config", "--cmd", "bash", container)
        buildah("commit", "--quiet", "--rm", container, base_name(), seconds=300)


def build(tag: str, *options: str, context: Path = ROOT) -> None:
    """As `docker build -t TAG OPTIONS .` would, but for torch, which is what this machine's pip finds.

    Raises AssertionError with its output.
    """
    make_base()
    how = ("--isolation", "chroot", "--network", "host", "--format", "docker", "--pull-never", "--layers")
    given = ("--build-arg=TORCH_INDEX_URL=", f"--build-arg=REVISION={REVISION}")
    with tempfile.TemporaryDirectory(prefix="registry-") as folder:
        volumes = [f"--volume={here}:{inside}:ro" for here, inside in registry.mounts(Path(folder)).items()]
        buildah("bud", *how, *volumes, *given, "--tag", tag, *options, str(context), seconds=1200)


def size_bytes(tag: str) -> int:
    with mounted(tag) as root:
        return int(run("du", "--summarize", "--bytes", "--one-file-system", root).stdout.split()[0])


def configuration(tag: str) -> dict[str, Any]:
    """Entrypoint, user, environment, labels, health check."""
    found: dict[str, Any] = json.loads(buildah("inspect", "--type", "image", tag).stdout)["Docker"]["config"]
    return found


@contextmanager
def mounted(tag: str) -> Iterator[Path]:
    """The root of a fresh container of the image."""
    container = buildah("from", "--pull-never", tag).stdout.strip()
    try:
        yield Path(buildah("mount", container).stdout.strip())
    finally:
        buildah("rm", container)


def inside(root: Path, tag: str, volumes: Path, command: list[str], log: IO[str], **environ: str) -> subprocess.Popen[bytes]:
    """A command in the image: its user, process 1, no capabilities, a root file system that is read-only.

    What it says goes into a file, not a pipe: a pipe that nobody reads fills up, and everything stands still.

    Args:
        volumes: a folder that has, or gets, one for each of compose's named volumes.
    """
    config, composed = configuration(tag), settled()["services"]["admin" if "SGF_ADMIN_TOKEN" in environ else COMPOSED[tag]]
    for volume in composed["volumes"]:
        place = volumes / volume.split(":")[0]
        if not place.exists():
            place.mkdir()
            owned(place, tag)
    pairs = [*config["Env"], *(f"{name}={value}" for name, value in environ.items())]
    uid, _, gid = config["User"].partition(":")
    script = INSIDE.format(
        root=root,
        mounts="\n".join(mounts(composed, root, volumes)),
        uid=uid,
        gid=gid,
        folder=config["WorkingDir"],
        environ=shlex.join(pairs),
        command=shlex.join(command),
    )
    isolated = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", script]
    return subprocess.Popen(isolated, stdout=log, stderr=subprocess.STDOUT)


def mounts(service: dict[str, Any], root: Path, volumes: Path) -> Iterator[str]:
    """The commands that mount, below a container's root, what a service of compose has."""
    for volume in service.get("volumes", ()):
        name, place, *how = volume.split(":")
        yield f"mkdir -p {root}{place} && mount --bind {volumes}/{name} {root}{place}"
        if how == ["ro"]:
            yield f"mount -o remount,ro,bind {root}{place}"
    for one in service.get("tmpfs", ()):
        place, _, options = one.partition(":")
        yield f"mount -t tmpfs -o {options or 'rw'} tmpfs {root}{place}"


def owned(volume: Path, tag: str) -> Path:
    """As a container's engine would hand it to the image's user."""
    run("chown", "-R", configuration(tag)["User"], volume)
    return volume


def done_inside(
    root: Path, tag: str, volumes: Path, command: list[str], seconds: float = 60, **environ: str
) -> tuple[int, str]:
    """The exit code and the output of a command that ends."""
    with tempfile.TemporaryFile("w+") as log:
        code = inside(root, tag, volumes, command, log, **environ).wait(timeout=seconds)
        log.seek(0)
        return code, log.read()


class Container:
    """The image's entrypoint, running."""

    def __init__(self, root: Path, tag: str, volumes: Path, **environ: str) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # until `close`
        self.process = inside(root, tag, volumes, configuration(tag)["Entrypoint"], self._log, **environ)

    @property
    def pid(self) -> int:
        """Of its process 1, as the machine sees it."""
        parent = self.process.pid
        return int(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0])

    def check_confined(self) -> None:
        check_confined(self.pid)

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

    def __init__(self, root: Path, tag: str, volumes: Path, **environ: str) -> None:
        port = free_port()
        super().__init__(root, tag, volumes, SGF_PORT=str(port), **environ)
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
