"""The package as a user installs it: `pip install .` into an empty environment, away from the repository, without torch.

For each supported Python on this machine, every command is run in a folder that has packages named `service` and `training`
of the user's own: importing one of those fails, so a command that imports from the current folder fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deploy.tools import run
from tests.service.serving import free_port, until

ROOT = Path(__file__).parent.parent
PYTHONS = ("3.11", "3.12", "3.13")
EXTRA = "pip install 'sgformer-serving[train]'"
CLIENT = """
import sys
from sgformer_client import Client, new_node

with Client(sys.argv[1]) as client:
    answer = client.predict([0], [new_node("mine", [0.0] * 64, [3, 14])])
    print(answer.model, answer.version, [prediction.exactness for prediction in answer.predictions], client.embed([0]).shape)
"""

pytestmark = pytest.mark.skipif(
    os.environ.get("VERIFY_INSTALL") != "1",
    reason="NOT RUN: needs a package index and minutes; `make verify-install` runs it",
)


def python_of(version: str) -> str | None:
    """The path of a Python of this version: on PATH, or one of pyenv's."""
    pyenv = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python"))
    for program in filter(None, (shutil.which(f"python{version}"), *pyenv)):
        done = run(program, "-c", "import sys; print('%d.%d' % sys.version_info[:2])", check=False)
        if done.stdout.strip() == version:  # a shim of pyenv may be there without its Python
            return str(program)
    return None


class Installation:
    """An environment with the package alone, and a folder of a user beside it."""

    def __init__(self, python: str, folder: Path) -> None:
        self.bin, self.folder = folder / "venv" / "bin", folder / "user"
        source = folder / "source"
        for name in run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).stdout.splitlines():
            if (ROOT / name).exists():
                (source / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, source / name)
        run(python, "-m", "venv", folder / "venv")
        pip = (self.bin / "python", "-m", "pip", "install", "--disable-pip-version-check", "-c", source / "constraints.txt")
        run(*pip, source, seconds=400, cwd=folder)
        shutil.rmtree(source)
        for package in ("service", "training"):
            (self.folder / package).mkdir(parents=True)
            (self.folder / package / "__init__.py").write_text(f"raise SystemExit('imported {package} of the user')")

    def run(self, program: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return run(self.bin / program, *arguments, cwd=self.folder, env=self.environ(), check=False, **options)

    def environ(self) -> dict[str, str]:
        hidden = ("SGF_", "PYTHON", "VIRTUAL_ENV")
        return {name: value for name, value in os.environ.items() if not name.startswith(hidden)}

    @contextmanager
    def served(self, *arguments: str) -> Iterator[str]:
        """`sgf-serve` in the user's folder; yields its address when it is ready."""
        address = f"http://127.0.0.1:{(port := free_port())}"
        with (self.folder / "log").open("w") as log:
            command = [str(self.bin / "sgf-serve"), *arguments, "--port", str(port)]
            process = subprocess.Popen(command, cwd=self.folder, env=self.environ(), stdout=log, stderr=log)
        try:
            until(lambda: process.poll() is not None or is_ready(address), seconds=60)
            assert process.poll() is None, (self.folder / "log").read_text()
            yield address
        finally:
            process.terminate()
            process.wait(timeout=30)


def is_ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health/ready").status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module", params=PYTHONS)
def installation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    python = python_of(request.param)
    if python is None:
        pytest.skip(f"NOT RUN: there is no Python {request.param} on this machine")
    return Installation(python, tmp_path_factory.mktemp(f"python{request.param}"))


def test_torch_is_not_installed(installation: Installation) -> None:
    assert installation.run("python", "-c", "import torch").returncode == 1


@pytest.mark.parametrize("program", ["sgf-serve", "sgf-models", "sgf-worker", "sgf-train", "sgf-graph"])
def test_every_command_shows_its_help_without_an_extra(installation: Installation, program: str) -> None:
    done = installation.run(program, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {program}")


@pytest.mark.parametrize("arguments", [(), ("--recipe", "digits"), ("tune", "--out", "mine.toml")])
def test_training_names_the_extra_that_it_needs(installation: Installation, arguments: tuple[str, ...]) -> None:
    done = installation.run("sgf-train", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"sgf-train: training needs torch, sklearn, tqdm: {EXTRA}, or make install in a clone\n"


def test_the_demo_is_served_and_the_client_asks_it(installation: Installation) -> None:
    with installation.served("--demo") as address:
        answer = httpx.post(f"{address}/predict", json={"nodes": [0, 5], "top_k": 1, "probabilities": False}).json()
        assert (answer["model"], answer["version"], len(answer["predictions"])) == ("digits", 1, 2)
        assert httpx.get(f"{address}/docs").status_code == 200
        assert "sgf_requests_total" in httpx.get(f"{address}/metrics").text
        (installation.folder / "ask.py").write_text(CLIENT)
        done = installation.run("python", "-W", "error", "ask.py", address)
    assert (done.stdout, done.stderr) == ("digits 1 ['exact', 'exact'] (1, 64)\n", "")


def test_several_workers_serve_the_demo(installation: Installation) -> None:
    with installation.served("--demo", "--workers", "2") as address:
        assert httpx.post(f"{address}/predict", json={"nodes": [0]}).json()["version"] == 1


def test_the_store_can_be_managed(installation: Installation) -> None:
    """After the tests above, the store has the demo."""
    done = installation.run("sgf-models", "verify")
    assert (done.returncode, done.stderr) == (0, "")
    done = installation.run("sgf-models", "import", "--layout", "pyg", "--weights", "w", "--graph", "g")
    assert (done.returncode, done.stderr) == (1, f"sgf-models: this needs torch: {EXTRA}\n")


def test_a_worker_without_redis_is_one_sentence(installation: Installation) -> None:
    done = installation.run("sgf-worker")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "SGF_REDIS_URL is empty" in done.stderr


def test_at_least_the_python_of_this_test_is_found() -> None:
    assert python_of(f"{sys.version_info.major}.{sys.version_info.minor}") is not None
