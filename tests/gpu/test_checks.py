"""The checks of `make verify-gpu`, tried on the CPU, and what the command says without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.gpu import __main__ as command
from tests.gpu.checks import Check, check_full_forward, check_step

PAGE = Path(__file__).parents[2] / "docs" / "training.md"


def test_the_cpu_equals_itself_and_the_page_names_the_checks() -> None:
    checks = [*check_step("cpu"), *check_full_forward("cpu")]
    assert [check.seen for check in checks] == ["0.0e+00"] * 5
    for check in checks:
        assert command.ROW.format(check.name, check.expected, "", "").rstrip() in PAGE.read_text()


def test_a_wrong_value_fails_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for value, code, verdict in ((0.2, 1, "WRONG"), (0.05, 0, "ok")):
        monkeypatch.setattr(command, "all_checks", lambda *_, value=value: [Check.at_most("states", value, 0.1)])
        assert command.verify("cpu") == code
        assert verdict in capsys.readouterr().out.splitlines()[2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="NOT RUN: this machine has a GPU")
def test_without_a_gpu_nothing_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.verify() == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("NOT RUN: --device (SGF_DEVICE) is cuda, but torch.cuda.is_available() is False: torch ")
