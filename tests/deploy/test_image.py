"""The serving image: built from the Dockerfile, run as it is meant to run, asked, stopped with a request in hand."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from model_store import Store
from tests.deploy import image
from tests.deploy.drain import check_drains
from tests.deploy.image import SERVING, owned
from tests.deploy.inspection import check_clean, check_configuration, check_small
from tests.deploy.storage import PARENT, buildah
from tests.deploy.tools import ROOT, thorough
from tests.service.serving import CONTENTS, until

pytestmark = thorough


@pytest.fixture
def volumes(serving_root: Path, tmp_path: Path) -> Path:
    """One of them, `store`, with one version that is live."""
    Store(tmp_path / "store" / "models").publish("demo", CONTENTS, activate=True)
    owned(tmp_path / "store", SERVING)
    return tmp_path


@pytest.fixture
def service(request: pytest.FixtureRequest, serving_root: Path, volumes: Path) -> Iterator[image.Service]:
    """Of two worker processes, unless a test asks for another number."""
    running = image.Service(serving_root, SERVING, volumes, SGF_WORKERS=str(getattr(request, "param", 2)))
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


def test_a_root_that_is_needed_for_writing_would_be_seen(serving_root: Path, volumes: Path) -> None:
    """The check above can fail: a program that writes outside /tmp and the store does not get far."""
    for place in ("/opt/sgformer/x", "/var/lib/sgformer/data/x"):
        code, output = image.done_inside(serving_root, SERVING, volumes, ["python3", "-c", f"open({place!r}, 'w')"])
        assert code != 0
        assert "Read-only file system" in output


def test_its_health_check_tells_ready_from_not(serving_root: Path, service: image.Service, tmp_path: Path) -> None:
    health = image.configuration(SERVING)["Healthcheck"]["Test"][1:]
    assert image.done_inside(serving_root, SERVING, tmp_path, health, SGF_PORT=str(service.port))[0] == 0
    (tmp_path / "empty").mkdir()
    with_nothing = image.Service(serving_root, SERVING, tmp_path / "empty")
    try:
        until(lambda: _status(with_nothing.client, "/health/live") == 200)
        assert _status(with_nothing.client, "/health/ready") == 503
        assert image.done_inside(serving_root, SERVING, tmp_path, health, SGF_PORT=str(with_nothing.port))[0] != 0
    finally:
        with_nothing.close()


@pytest.mark.parametrize("service", [1, 2], indirect=True)
def test_sigterm_drains_it(service: image.Service) -> None:
    """As process 1: uvicorn raises the signal once more when it has ended, which does nothing to a process 1."""
    answer = check_drains(service.port, lambda: os.kill(service.pid, signal.SIGTERM))
    assert [one["exactness"] for one in answer["predictions"]] == ["exact"]
    assert service.process.wait(timeout=20) == 0
    assert _status(service.client, "/health/live") == 0


def test_it_is_small_and_has_nothing_of_training(serving_root: Path) -> None:
    packages = {path.name for path in (serving_root / "opt/sgformer/lib/python3.11/site-packages").iterdir()}
    check_small(packages, image.size_bytes(SERVING))


def test_nothing_of_this_machine_is_inside(serving_root: Path) -> None:
    check_clean(serving_root, image.configuration(SERVING))


def test_its_labels_and_signals(serving_root: Path) -> None:
    check_configuration(image.configuration(SERVING), image.REVISION)


def test_the_forged_base_is_in_no_storage_but_our_own(serving_root: Path) -> None:
    assert image.base_name() in buildah("images", "--format", "{{.Name}}:{{.Tag}}").stdout.split()
    assert serving_root.is_relative_to(PARENT)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("COPY service /service\n", "COPY sevrice /service\n"),
        ("LICENSE ./\n", "LICENSE ./\nRUN sed -i s/^setuptools==.*/setuptools==0.0.0/ constraints.txt\n"),
        ("serving.lock ./\n", "serving.lock ./\nRUN sed -i s/sha256:../sha256:00/ serving.lock\n"),
    ],
)
def test_a_broken_dockerfile_does_not_build(serving_root: Path, tmp_path: Path, right: str, wrong: str) -> None:
    """The second shows that constraints reach what builds packages, the third that a file with another hash is refused."""
    text = (ROOT / "Dockerfile").read_text()
    assert right in text
    (tmp_path / "Dockerfile").write_text(text.replace(right, wrong))
    with pytest.raises(AssertionError, match=r"sevrice|setuptools==0\.0\.0|DO NOT MATCH THE HASHES"):
        image.build("sgformer-serving:broken", "--file", str(tmp_path / "Dockerfile"))


def _status(client: httpx.Client, path: str) -> int:
    try:
        return client.get(path).status_code
    except httpx.TransportError:
        return 0
