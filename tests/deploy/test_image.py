"""The serving image: built from the Dockerfile, run as it is meant to run, asked, stopped under load."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from model_store import Store
from tests.deploy import image
from tests.deploy.image import SERVING, owned
from tests.deploy.tools import ROOT, thorough
from tests.service.serving import CONTENTS, until

pytestmark = thorough
LARGEST_BYTES = 350_000_000


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The volume, with one version that is live."""
    Store(tmp_path / "models").publish("demo", CONTENTS, activate=True)
    return owned(tmp_path, SERVING)


@pytest.fixture
def service(serving_root: Path, store: Path) -> Iterator[image.Service]:
    running = image.Service(serving_root, SERVING, store, SGF_WORKERS="2")
    try:
        running.wait()
        yield running
    finally:
        running.close()


def test_it_answers_as_its_user_on_a_read_only_root(service: image.Service) -> None:
    service.check_confined()
    new = {"id": "a", "features": [1, 2, 3, 4, 5], "neighbors": [0, 3]}
    answer = service.client.post("/predict", json={"nodes": [1], "new_nodes": [new]}).json()
    assert [one["exactness"] for one in answer["predictions"]] == ["exact", "exact"]
    until(lambda: "sgf_ready 1.0" in service.client.get("/metrics").text)  # the second worker too


def test_a_root_that_is_needed_for_writing_would_be_seen(serving_root: Path, store: Path) -> None:
    """The check above can fail: a program that writes outside /tmp and the store does not get far."""
    code, output = image.done_inside(serving_root, SERVING, store, ["python3", "-c", "open('/opt/sgformer/x', 'w')"])
    assert code != 0
    assert "Read-only file system" in output


def test_its_health_check_tells_ready_from_not(serving_root: Path, service: image.Service, tmp_path: Path) -> None:
    health = image.configuration(SERVING)["Healthcheck"]["Test"][1:]
    assert image.done_inside(serving_root, SERVING, tmp_path, health, SGF_PORT=str(service.port))[0] == 0
    (tmp_path / "empty").mkdir()
    with_nothing = image.Service(serving_root, SERVING, owned(tmp_path / "empty", SERVING))
    try:
        until(lambda: _status(with_nothing.client, "/health/live") == 200)
        assert _status(with_nothing.client, "/health/ready") == 503
        assert image.done_inside(serving_root, SERVING, tmp_path, health, SGF_PORT=str(with_nothing.port))[0] != 0
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


def test_it_is_small_and_has_nothing_of_training(serving_root: Path) -> None:
    packages = {path.name for path in (serving_root / "opt/sgformer/lib/python3.11/site-packages").iterdir()}
    assert {"service", "onnxruntime", "numpy"} <= packages
    assert not {"torch", "sklearn", "pandas", "pip"} & packages
    assert image.size_bytes(SERVING) < LARGEST_BYTES


def test_nothing_of_this_machine_is_inside(serving_root: Path) -> None:
    """What the build needed to reach a registry was mounted, and is gone; empty files are left where buildah mounted."""
    for left in (serving_root / "etc/pip.conf", *(serving_root / "run/registry").glob("*")):
        assert not left.exists() or left.stat().st_size == 0
    told = json.dumps(image.configuration(SERVING))
    assert str(ROOT) not in told
    assert "PIP_" not in told


def test_its_labels_and_signals(serving_root: Path) -> None:
    config = image.configuration(SERVING)
    assert config["Entrypoint"] == ["sgf-serve"]
    assert config["User"] == "10001:10001"
    assert config["StopSignal"] == "SIGTERM"
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_a_broken_dockerfile_does_not_build(serving_root: Path, tmp_path: Path) -> None:
    broken = tmp_path / "Dockerfile"
    broken.write_text((ROOT / "Dockerfile").read_text().replace("COPY service /service\n", "COPY sevrice /service\n"))
    with pytest.raises(AssertionError, match="sevrice"):
        image.build("sgformer-serving:broken", "--file", str(broken))


def _status(client: httpx.Client, path: str) -> int:
    try:
        return client.get(path).status_code
    except httpx.TransportError:
        return 0
