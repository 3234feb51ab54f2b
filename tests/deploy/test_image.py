"""The serving image: built from the Dockerfile, run as it is meant to run, asked, stopped under load."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from model_store import Store
from tests.deploy import image
from tests.deploy.tools import ROOT, need, run, thorough
from tests.service.serving import CONTENTS, until

pytestmark = [thorough, pytest.mark.xdist_group("image")]
SERVING, WORKER = "sgformer-serving:verify", "sgformer-worker:verify"
LARGEST_BYTES = 350_000_000


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    for program in ("buildah", "debootstrap", "unshare", "setpriv"):
        need(program)
    assert os.geteuid() == 0, "building and mounting an image without a daemon needs root"
    image.build(SERVING)
    with image.mounted(SERVING) as found:
        yield found


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The volume, with one version that is live."""
    Store(tmp_path / "models").publish("demo", CONTENTS, activate=True)
    return owned(tmp_path, SERVING)


def owned(volume: Path, tag: str) -> Path:
    """As a container's engine would hand it to the image's user."""
    run("chown", "-R", image.configuration(tag)["User"], volume)
    return volume


@pytest.fixture
def service(root: Path, store: Path) -> Iterator[image.Service]:
    running = image.Service(root, SERVING, store, SGF_WORKERS="2")
    try:
        running.wait()
        yield running
    finally:
        running.close()


def test_it_answers_as_its_user_on_a_read_only_root(service: image.Service) -> None:
    status = Path(f"/proc/{service.pid}/status").read_text()
    assert "Uid:\t10001\t10001\t10001\t10001" in status
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    mounts = Path(f"/proc/{service.pid}/mountinfo").read_text().splitlines()
    options = {line.split()[4]: line.split()[5].split(",") for line in mounts}
    assert "ro" in options["/"]
    new = {"id": "a", "features": [1, 2, 3, 4, 5], "neighbors": [0, 3]}
    answer = service.client.post("/predict", json={"nodes": [1], "new_nodes": [new]}).json()
    assert [one["exactness"] for one in answer["predictions"]] == ["exact", "exact"]
    until(lambda: "sgf_ready 1.0" in service.client.get("/metrics").text)  # the second worker too


def test_a_root_that_is_needed_for_writing_would_be_seen(root: Path, store: Path) -> None:
    """The check above can fail: a program that writes outside /tmp and the store does not get far."""
    code, output = image.done_inside(root, SERVING, store, ["python3", "-c", "open('/opt/sgformer/x', 'w')"])
    assert code != 0
    assert "Read-only file system" in output


def test_its_health_check_tells_ready_from_not(root: Path, service: image.Service, tmp_path: Path) -> None:
    health = image.configuration(SERVING)["Healthcheck"]["Test"][1:]
    assert image.done_inside(root, SERVING, tmp_path, health, SGF_PORT=str(service.port))[0] == 0
    (tmp_path / "empty").mkdir()
    with_nothing = image.Service(root, SERVING, owned(tmp_path / "empty", SERVING))
    try:
        until(lambda: _status(with_nothing.client, "/health/live") == 200)
        assert _status(with_nothing.client, "/health/ready") == 503
        assert image.done_inside(root, SERVING, tmp_path, health, SGF_PORT=str(with_nothing.port))[0] != 0
    finally:
        with_nothing.close()


def test_sigterm_drains_it_under_load(service: image.Service) -> None:
    answered: list[int] = []
    closed = threading.Event()

    def load() -> None:
        while not closed.is_set():
            try:
                with httpx.Client(base_url=service.client.base_url, timeout=10) as own:
                    answered.append(own.post("/predict", json={"nodes": [1]}).status_code)
            except httpx.TransportError:  # refused, or in the backlog when the socket closed: it was never accepted
                closed.set()

    callers = [threading.Thread(target=load) for _ in range(4)]
    for caller in callers:
        caller.start()
    until(lambda: len(answered) > 100)
    assert service.terminate() == 0
    for caller in callers:
        caller.join(timeout=15)
    assert set(answered) == {200}


def test_it_is_small_and_has_nothing_of_training(root: Path) -> None:
    packages = {path.name for path in (root / "opt/sgformer/lib/python3.11/site-packages").iterdir()}
    assert {"service", "onnxruntime", "numpy"} <= packages
    assert not {"torch", "sklearn", "pandas", "pip"} & packages
    assert image.size_bytes(SERVING) < LARGEST_BYTES


def test_nothing_of_this_machine_is_inside(root: Path) -> None:
    """What the build needed to reach a registry was mounted, and is gone."""
    for left in (root / "etc/pip.conf", *(root / "run/registry").glob("*")):  # where buildah mounted something
        assert not left.exists() or left.stat().st_size == 0
    told = json.dumps(image.configuration(SERVING))
    assert str(ROOT) not in told
    assert "PIP_" not in told


def test_its_labels_and_signals(root: Path) -> None:
    config = image.configuration(SERVING)
    assert config["Entrypoint"] == ["sgf-serve"]
    assert config["User"] == "10001:10001"
    assert config["StopSignal"] == "SIGTERM"
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_a_broken_dockerfile_does_not_build(root: Path, tmp_path: Path) -> None:
    broken = tmp_path / "Dockerfile"
    broken.write_text((ROOT / "Dockerfile").read_text().replace("COPY service /service\n", "COPY sevrice /service\n"))
    with pytest.raises(AssertionError, match="sevrice"):
        image.build("sgformer-serving:broken", "--file", str(broken))


def test_the_worker_trains_the_demo_and_the_service_answers_from_it(root: Path, tmp_path: Path) -> None:
    """The compose file's first start: one image trains into the empty store, the other serves it."""
    free = shutil.disk_usage("/var/lib").free
    assert free > 8e9, f"the worker's image needs 8 GB, {free / 1e9:.0f} GB are free below /var/lib"
    image.build(WORKER, "--target", "worker")
    volume = owned(tmp_path, WORKER)
    with image.mounted(WORKER) as workers_root:
        train = ["sgf-train", "--recipe", "digits", "--activate", "--quiet"]
        code, output = image.done_inside(workers_root, WORKER, volume, train, seconds=300)
        assert code == 0, output
        if "sgf-worker" in (ROOT / "pyproject.toml").read_text():  # strict as soon as the entry point is there
            help_of_it = [*image.configuration(WORKER)["Entrypoint"], "--help"]
            code, output = image.done_inside(workers_root, WORKER, volume, help_of_it)
            assert code == 0, output
    running = image.Service(root, SERVING, volume)
    try:
        running.wait()
        assert running.client.post("/predict", json={"nodes": [0]}).json()["model"] == "digits"
    finally:
        running.close()


def _status(client: httpx.Client, path: str) -> int:
    try:
        return client.get(path).status_code
    except httpx.TransportError:
        return 0
