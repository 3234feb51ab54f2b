"""What all commands have in common: help, version, errors, Ctrl-C, closed pipes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from model_store.cli.terminal import interruptible
from tests.terminals import Terminal
from training.__main__ import main as train_main
from training.fit.settings import TrainingConfig

MODULES = {
    "sgf-serve": "service",
    "sgf-worker": "service.jobs.worker",
    "sgf-models": "model_store",
    "sgf-train": "training",
    "sgf-graph": "service.graph_cli",
}
COMMANDS = [(program,) for program in MODULES] + [
    ("sgf-train", "check"),
    ("sgf-train", "refresh"),
    ("sgf-train", "tune"),
    ("sgf-train", "table"),
    ("sgf-models", "import"),
]
HEAVY = {"torch", "pandas", "pyarrow", "sklearn", "scipy", "optuna", "onnx", "onnxruntime", "torch_geometric", "ogb", "tqdm"}
HEAVY |= {"fastapi", "starlette", "uvicorn", "redis", "prometheus_client", "httpx"}
NOT_FOR_TRAINING_HELP = {"numpy", "pydantic"}
"""They took two thirds of the time of `sgf-train --help`. The list of tables needs them."""


def run(program: str, *arguments: str, python: tuple[str, ...] = (), **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SGF_")} | {"COLUMNS": "100"}
    command = [sys.executable, *python, "-m", MODULES[program], *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=kept | environ)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_loads_no_large_package(command: tuple[str, ...]) -> None:
    done = run(*command, "--help", python=("-X", "importtime"))
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: {' '.join(command)} ")
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "argparse" in loaded
    assert not loaded & HEAVY
    assert command[0] != "sgf-train" or command[-1] == "table" or not loaded & NOT_FOR_TRAINING_HELP


@pytest.mark.parametrize("program", MODULES)
def test_version(program: str) -> None:
    done = run(program, "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(rf"{program} \d+\.\d+\.\d+\S*\n", done.stdout)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("sgf-serve --prot 80", "sgf-serve: there is no argument --prot; did you mean --port? (see sgf-serve --help)"),
        ("sgf-worker --brust", "sgf-worker: there is no argument --brust; did you mean --burst? (see sgf-worker --help)"),
        ("sgf-train --epohcs=3", "sgf-train: there is no argument --epohcs; did you mean --epochs? (see sgf-train --help)"),
        ("sgf-train refesh", "sgf-train: there is no argument refesh; did you mean refresh? (see sgf-train --help)"),
        ("sgf-train xyzzy", "sgf-train: there is no argument xyzzy (see sgf-train --help)"),
        (
            "sgf-train refresh --data x --actvate",
            "sgf-train refresh: there is no argument --actvate; did you mean --activate? (see sgf-train refresh --help)",
        ),
        (
            "sgf-train --states float23",
            "sgf-train: argument --states: got 'float23', expected one of float32, float16; did you mean float32? "
            "(see sgf-train --help)",
        ),
        (
            "sgf-models import --layout pgy",
            "sgf-models import: argument --layout: got 'pgy', expected one of pyg, authors-large, authors-medium; "
            "did you mean pyg? (see sgf-models import --help)",
        ),
        (
            "sgf-models --json prune --kep 3",
            "sgf-models prune: there is no argument --kep; did you mean --keep? (see sgf-models prune --help)",
        ),
    ],
)
def test_a_wrong_command_line_is_one_line_with_a_suggestion(command: str, message: str) -> None:
    done = run(*command.split())
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{message}\n")


def test_a_mistyped_command_has_a_suggestion() -> None:
    done = run("sgf-models", "lst")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(
        r"sgf-models: argument COMMAND: got 'lst', expected one of .*; did you mean list\? \(see .*\)\n", done.stderr
    )


@pytest.mark.parametrize("option", ["--dataset", "--recipe"])
def test_a_mistyped_data_set_or_recipe_has_a_suggestion(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_main([option, "pubmd", "--store", str(tmp_path)]) in (1, 2)
    message = capsys.readouterr().err
    assert message.endswith("; did you mean pubmed?\n")
    assert message.count("\n") == 1


def test_help_has_the_defaults() -> None:
    text = " ".join(run("sgf-train", "--help").stdout.split())
    assert f"learning rate (default: the recipe's, or {TrainingConfig().learning_rate})" in text
    assert "time between checkpoints (default: 30.0)" in text
    assert "(default: None)" not in text
    assert "(default: False)" not in text
    text = " ".join(run("sgf-serve", "--help").stdout.split())
    assert "port to listen on; 0: any free port (SGF_PORT, default 8000)" in text


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_reader_that_closes_the_pipe_gets_no_traceback(command: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    program, *words = command
    process = [sys.executable, "-m", MODULES[program], *words, "--help"]
    done = subprocess.run(process, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_ctrl_c_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    @interruptible("sgf-models")
    def main(_arguments: object) -> int:
        raise KeyboardInterrupt

    assert main([]) == 130
    assert capsys.readouterr().err == "sgf-models: interrupted\n"


def test_a_stopped_training_says_how_to_continue_below_its_progress(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "training", "--recipe", "digits", "--epochs", "100000", "--store", str(tmp_path / "m"))
    with Terminal(*command) as terminal:
        terminal.read_until(r"digits +\d+% .*epochs, .* left, loss=\d\.\d+, accuracy=0\.\d{4}")
        terminal.press_ctrl_c()
        assert terminal.wait() == 130
    *_, last = terminal.plain.splitlines()
    checkpoint = tmp_path / "training" / "digits.safetensors"
    assert last == f"sgf-train: stopped; the same command with --resume continues from {checkpoint}"
    assert "Traceback" not in terminal.text


def test_ctrl_c_while_packages_are_imported_is_one_line(tmp_path: Path) -> None:
    with Terminal(sys.executable, "-v", "-m", "training", "--store", str(tmp_path)) as terminal:
        terminal.read_until(r"import 'torch\.")
        terminal.press_ctrl_c()
        code = terminal.wait()
    assert (code, "Traceback" in terminal.text, "sgf-train: interrupted" in terminal.text) == (130, False, True)
