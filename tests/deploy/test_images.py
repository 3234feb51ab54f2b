"""Both images, built by a Docker engine: their contents, their configuration, and what each does alone."""

from __future__ import annotations

import io
import json
import re
import subprocess
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.commands import commands_of
from tests.deploy import images
from tests.deploy.docker_engine import docker
from tests.deploy.images import DOCKERFILE, SERVING, WORKER
from tests.deploy.tools import ROOT, need, thorough
from tests.service.serving import until
from tests.training.samples import write_folder

pytestmark = [thorough, pytest.mark.usefixtures("available")]
CONFINED = ("--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--network=none")
LARGEST_BYTES = 350_000_000
"""Of the serving image."""
SIZE_TOLERANCE = 0.03
"""Packages of Debian and builds of torch differ a little from day to day and from index to index."""
LABELS = "org.opencontainers.image."


def inspect(image: str) -> dict[str, Any]:
    details: dict[str, Any] = json.loads(docker("image", "inspect", image).stdout)[0]
    return details


def test_images_say_how_to_run_them() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for image, program in ((SERVING, "sgf-serve"), (WORKER, "sgf-worker")):
        config = inspect(image)["Config"]
        assert (config["Entrypoint"], config["User"], config["StopSignal"]) == ([program], "10001:10001", "SIGTERM")
        labels = {
            "title": image.partition(":")[0],
            "licenses": "Apache-2.0",
            "version": version,
            "revision": images.REVISION,
        }
        assert labels.items() <= {name.removeprefix(LABELS): value for name, value in config["Labels"].items()}.items()


def test_the_serving_image_has_nothing_of_training() -> None:
    listed = docker(
        "run", "--rm", "--entrypoint=sh", SERVING, "-c", "ls /opt/sgformer/lib/python3*/site-packages"
    ).stdout.split()
    assert {"service", "onnxruntime", "numpy"} <= set(listed)
    assert not {"torch", "sklearn", "pandas", "pip", "setuptools"} & set(listed)


def test_the_images_have_the_sizes_that_the_guide_states() -> None:
    sizes = {image: inspect(image)["Size"] for image in (SERVING, WORKER)}
    images.ORIGINS |= {image: f"built here, {size / 1e6:.0f} MB" for image, size in sizes.items()}
    assert sizes[SERVING] < LARGEST_BYTES
    guide = (ROOT / "docs" / "deployment.md").read_text()
    (stated,) = re.findall(r"^\| size in the engine \| (\d+) MB \| ([\d.]+) GB,", guide, re.MULTILINE)
    assert [sizes[SERVING] / 1e6, sizes[WORKER] / 1e9] == pytest.approx([float(size) for size in stated], rel=SIZE_TOLERANCE)


def test_the_workers_torch_is_a_cpu_build() -> None:
    program = "import torch; print(torch.version.cuda)"
    assert docker("run", "--rm", *CONFINED, "--entrypoint=python3", WORKER, "-c", program).stdout == "None\n"


@pytest.mark.parametrize("image", [SERVING, WORKER])
def test_nothing_of_this_machine_is_in_the_image(image: str) -> None:
    """The stand-in for the base has pip's settings. Nothing that is built on it may."""
    configuration = json.dumps(inspect(image)["Config"])
    history = docker("history", "--no-trunc", "--format={{.CreatedBy}}", image).stdout
    assert str(ROOT) not in configuration + history
    assert "PIP_" not in configuration


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("COPY service /service\n", "COPY sevrice /service\n", "sevrice"),
        # Constraints reach the packages that build packages.
        (
            "LICENSE ./\n",
            "LICENSE ./\nRUN sed -i s/^setuptools==.*/setuptools==0.0.0/ constraints.txt\n",
            r"setuptools==0\.0\.0",
        ),
        (
            "serving.lock ./\n",
            "serving.lock ./\nRUN sed -i s/sha256:../sha256:00/ serving.lock\n",
            "DO NOT MATCH THE HASHES",
        ),
    ],
)
def test_a_broken_dockerfile_does_not_build(right: str, wrong: str, message: str) -> None:
    assert right in DOCKERFILE
    with pytest.raises(AssertionError, match=message):
        images.build("sgformer-serving:broken", "--target=build-serving", dockerfile=DOCKERFILE.replace(right, wrong))


def test_the_health_check_fails_while_no_model_is_served() -> None:
    """The service is alive without a model, and not ready."""
    health = inspect(SERVING)["Config"]["Healthcheck"]["Test"][1:]
    live = ["python3", "-c", health[-1].replace("/health/ready", "/health/live")]
    container = docker("run", "--detach", "--env", "SGF_WAIT_FOR_MODEL=true", *CONFINED, SERVING).stdout.strip()
    try:
        until(lambda: docker("exec", container, *live, check=False).returncode == 0)
        failed = docker("exec", container, *health, check=False)
        assert failed.returncode != 0
        assert "503" in failed.stderr
    finally:
        docker("rm", "--force", container)


def test_the_first_model_of_production_is_trained_as_the_guide_says(tmp_path: Path) -> None:
    """The two commands of docs/deployment.md for the worker's container, on empty volumes."""
    commands = [command.text for command in commands_of(ROOT, "docs/deployment.md") if "exec" in command.text]
    unpack, train = (text.partition(" -- ")[2].split() for text in commands if "sgformer-worker" in text)
    write_folder(tmp_path / "my_graph", "csv")
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(tmp_path / "my_graph", "my_graph")
    volumes = [f"--volume=first-model-{name}:/var/lib/sgformer/{name}" for name in ("store", "data")]
    run_worker = [need("docker"), "run", "--rm", "--interactive", *CONFINED, *volumes]
    try:
        for command in (unpack, [*train, "--epochs", "3"], ["ls", "store/models/my-graph/CURRENT"]):
            started = [*run_worker, f"--entrypoint={command[0]}", WORKER, *command[1:]]
            done = subprocess.run(started, input=archive.getvalue(), capture_output=True, timeout=300, check=False)
            assert done.returncode == 0, done.stderr.decode()
    finally:
        docker("volume", "rm", "first-model-store", "first-model-data")
