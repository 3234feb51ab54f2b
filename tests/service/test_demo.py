"""`sgf-serve --demo`: installs the demo, serves it, and prints a request that it answers."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from service.__main__ import main as serve_main
from tests.service.serving import free_port, until


def test_a_store_that_cannot_be_written_is_one_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    command = [sys.executable, "-m", "service", "--demo", "--store", str(tmp_path / "file" / "models")]
    assert subprocess.run(command, check=False).returncode == 1
    message = capfd.readouterr().err
    assert message.startswith("sgf-serve: the demo cannot be installed into the store: ")
    assert message.count("\n") == 1


def test_the_demo_is_one_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve_main(["--demo", "--model", "mine"]) == 2
    assert capsys.readouterr().err == "sgf-serve: --demo serves the model digits; leave out --model mine\n"


@contextmanager
def served_demo(store: Path, output: Path) -> Iterator[None]:
    """`sgf-serve --demo`, its standard output in a file."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SGF_")}
    command = [sys.executable, "-m", "service", "--demo", "--store", str(store), "--port", str(free_port())]
    with (
        output.open("w") as stdout,
        subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, env=environ) as process,
    ):
        try:
            yield
        finally:
            process.terminate()
            process.communicate(timeout=30)


def test_the_printed_curl_command_is_answered(tmp_path: Path) -> None:
    output = tmp_path / "output"
    with served_demo(tmp_path / "models", output):
        until(lambda: "curl" in output.read_text(), seconds=60)
        text = output.read_text()
        _, url, _, question = shlex.split(text.strip().splitlines()[-1])
        assert re.search(rf"^The demo is served on {url.removesuffix('/predict')}\.", text.strip())
        answer = httpx.post(url, content=question, headers={"content-type": "application/json"}).json()
    (prediction,) = answer["predictions"]
    assert (answer["model"], answer["version"], prediction["class"], prediction["exactness"]) == ("digits", 1, "1", "exact")
