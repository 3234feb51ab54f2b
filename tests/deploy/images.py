"""The images that the Dockerfile and the compose file name: pulled, or made from Debian's packages where a pull fails.

A stand-in has the name of the public image, so stand-ins are made only in an engine that `make verify-deploy` has started
and that it removes. `ORIGINS` says of each image where it came from; the end of the test run prints it.
"""

from __future__ import annotations

import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from tests.deploy.deployment_files import DOCKERFILE, compose
from tests.deploy.docker_engine import docker
from tests.deploy.tools import ROOT, need, run

SERVING, WORKER = "sgformer-serving:verify", "sgformer-worker:verify"
REVISION = "0123456789abcdef0123456789abcdef01234567"
BASE = f"debian:{re.findall(r'^ARG DEBIAN=(.*)$', DOCKERFILE, re.MULTILINE)[0]}"
TORCH_INDEX = re.findall(r"^ARG TORCH_INDEX_URL=(.*)$", DOCKERFILE, re.MULTILINE)[0]
LEFT_OUT_OF_SLIM = ("share/doc", "share/man", "share/locale", "share/info")
"""Folders below /usr that Debian's -slim images leave out."""
INSTALL = "RUN apt-get update && apt-get install -y --no-install-recommends {} && rm -rf /var/lib/apt/lists/*"
STAND_INS = {
    # The published image disables Redis' protected mode.
    "redis": [
        INSTALL.format("redis-server"),
        # Debian's Redis 7.0 does not know WAITAOF, and does not start with a user who may call it.
        "RUN printf '#!/bin/sh\\nsed -i s/.+waitaof// /tmp/users.acl\\n"
        'exec /usr/bin/redis-server "$@" --protected-mode no\\n\' >/usr/local/bin/redis-server'
        " && chmod 755 /usr/local/bin/redis-server && install -d -o 999 -g 999 /data",
        "WORKDIR /data",
    ],
    "nginx": [INSTALL.format("nginx-light")],
    "prom/prometheus": [
        INSTALL.format("prometheus wget"),
        "RUN install -d -o nobody -g nogroup /prometheus",
        "USER nobody",
        'ENTRYPOINT ["/usr/bin/prometheus"]',
    ],
}
LOCAL = re.compile(r"(?:(?<=\s)|^)(?:file://)?(/\S+)")
ORIGINS: dict[str, str] = {}
_port = 0
"""Of the server of wheels; 0 before it has started."""


def provide(image: str, own: bool) -> bool:
    """Pulls an image unless the engine has it, or makes a stand-in. False: there is neither."""
    if docker("image", "inspect", image, check=False).returncode == 0:
        ORIGINS.setdefault(image, "was in the engine")
        return True
    pull = docker("pull", "--quiet", image, check=False, seconds=600)
    name = image.partition(":")[0]
    if pull.returncode == 0:
        ORIGINS[image] = "pulled"
        return True
    reason = pull.stderr.strip().rpartition(": ")[2]
    if image != BASE and name not in STAND_INS:
        ORIGINS[image] = f"NOT RUN: cannot be pulled ({reason}), and Debian has no such package"
        return False
    if not own:
        pytest.fail(f"{image} cannot be pulled ({reason}); a stand-in is made only in an engine that the checks start")
    ORIGINS[image] = f"stand-in from Debian's packages (pull failed: {reason})"
    if image == BASE:
        make_base()
    else:
        build(image, dockerfile="\n".join([f"FROM {BASE}", *STAND_INS[name]]))
    return True


def make_base() -> None:
    """Imports a tree of debootstrap under the name of the base image, with this machine's pip settings in it."""
    with tempfile.TemporaryDirectory(prefix="base-", dir="/var/tmp") as folder:  # 200 MB
        root = Path(folder)
        release = re.findall(r"^VERSION_CODENAME=(\w+)$", Path("/etc/os-release").read_text(), re.MULTILINE)
        assert release == ["bookworm"], f"a stand-in for {BASE} needs Debian 12, this is {release}"
        run(need("debootstrap"), "--variant=minbase", "bookworm", root, seconds=900)
        for path in (*(f"usr/{path}" for path in LEFT_OUT_OF_SLIM), "var/cache/apt", "var/lib/apt/lists"):
            run("find", root / path, "-mindepth", "1", "-delete")
        write_pip_settings(root)
        run("sh", "-c", f"tar -C {root} -c . | docker import --change 'CMD [\"bash\"]' - {BASE}", seconds=300)


def write_pip_settings(root: Path) -> None:
    """Writes pip's settings and its certificate. Outside /etc/ssl, whose files a package replaces."""
    settings = pip_settings()
    certificates = Path(settings.get("cert", "/etc/ssl/certs/ca-certificates.crt"))
    if certificates.exists():
        settings["cert"] = "/usr/local/share/registry.crt"
        (root / settings["cert"][1:]).write_bytes(certificates.read_bytes())
    for name in {"find-links", "extra-index-url", "index-url"} & settings.keys():
        settings[name] = LOCAL.sub(rf"http://127.0.0.1:{_port}\1", settings[name])
    lines = ["[global]", *(f"{name} = {value}" for name, value in settings.items())]
    (root / "etc/pip.conf").write_text("\n".join(lines) + "\n")


def pip_settings() -> dict[str, str]:
    listed = run(sys.executable, "-m", "pip", "config", "list").stdout
    return dict(re.findall(r"^(?:global|:env:)\.([a-z-]+)='(.*)'$", listed, re.MULTILINE))


@contextmanager
def served_wheels() -> Iterator[None]:
    """Serves the folders of wheels in pip's settings to the builds, which run in the machine's network."""
    global _port
    settings = pip_settings()
    with tempfile.TemporaryDirectory(prefix="wheels-") as folder:
        for path in LOCAL.findall(f"{settings.get('find-links', '')} {settings.get('extra-index-url', '')}"):
            shown = Path(path).parent if path.endswith("/simple") else Path(path)  # an index links to files beside it
            link = Path(folder + str(shown))
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(shown)
        handler = partial(QuietHandler, directory=folder)
        with ThreadingHTTPServer(("127.0.0.1", _port), handler) as server:
            _port = server.server_port
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield
            server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def build(tag: str, *options: str | Path, dockerfile: str = DOCKERFILE) -> None:
    """Builds an image in the machine's network. Raises AssertionError with the build's output."""
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(dockerfile)
        file.flush()
        options = ("--network=host", "--force-rm", *options)  # a step that fails leaves no container
        docker("build", f"--file={file.name}", f"--tag={tag}", *options, ROOT, seconds=1500)


def build_ours(own: bool) -> None:
    """Builds the worker's image and the serving image on the base that the Dockerfile names."""
    provide(BASE, own)
    index = reachable_torch_index()
    ORIGINS["torch"] = f"from {index}" if index else f"from pip's own index: {TORCH_INDEX} does not answer"
    for tag, target in ((WORKER, "worker"), (SERVING, "serving")):
        build(tag, f"--target={target}", f"--build-arg=REVISION={REVISION}", f"--build-arg=TORCH_INDEX_URL={index}")


def reachable_torch_index() -> str:
    """The Dockerfile's default, or empty where the address does not answer."""
    try:
        return TORCH_INDEX if httpx.head(f"{TORCH_INDEX}/torch/", timeout=10, follow_redirects=True).is_success else ""
    except httpx.HTTPError:
        return ""


def provide_others(own: bool) -> set[str]:
    """The services of compose whose image is not ours and can be had."""
    services = compose()["services"]
    names = {name: service["image"] for name, service in services.items() if not service["image"].startswith("$")}
    return {name for name, image in names.items() if provide(image, own)}
