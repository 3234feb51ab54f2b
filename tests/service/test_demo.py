"""`sgf-serve --demo`: installs the demo, serves it, and prints a request that it answers."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from service.__main__ import main as serve_main
from tests.service.serving import free_port
from tests.terminals import Terminal


def test_a_store_that_cannot_be_written_is_one_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    command = [sys.executable, "-m", "service", "--demo", "--port", "0", "--store", str(tmp_path / "file" / "models")]
    assert subprocess.run(command, check=False).returncode == 1
    message = capfd.readouterr().err
    assert message.startswith("sgf-serve: the demo cannot be installed into the store: ")
    assert message.count("\n") == 1


def test_the_demo_is_one_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve_main(["--demo", "--model", "mine"]) == 2
    assert capsys.readouterr().err == "sgf-serve: --demo serves the model digits; leave out --model mine\n"


def test_the_printed_curl_command_is_answered(tmp_path: Path) -> None:
    port = free_port()
    with Terminal(sys.executable, "-m", "service", "--demo", "--store", str(tmp_path), "--port", str(port)) as terminal:
        command = terminal.read_until(r"(?m)^curl .*\n")[0]
        assert "model      digits, version 1, snapshot " in terminal.plain
        assert "1,796 nodes, 9,922 edges, 64 features" in terminal.plain
        _, url, _, question = shlex.split(command)
        answer = httpx.post(url, content=question, headers={"content-type": "application/json"}).json()
    (prediction,) = answer["predictions"]
    assert (answer["model"], answer["version"], prediction["node"]) == ("digits", 1, 0)
