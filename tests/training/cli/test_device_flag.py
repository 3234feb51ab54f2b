"""`--device` of the commands, on a machine without a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training.samples import user_arrays
from training.__main__ import main
from training.cli.options import RefreshOptions, TrainOptions, TuneOptions

WITHOUT_A_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="NOT RUN: this machine has a GPU")


@WITHOUT_A_GPU
@pytest.mark.parametrize("command", ["", "refresh --data x.npz", "tune --out x.toml"])
def test_a_missing_gpu_is_one_sentence_and_exit_code_2(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "--device", "cuda", "--store", str(tmp_path)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("sgf-train: --device (SGF_DEVICE) is cuda, but torch.cuda.is_available() is False: torch ")
    assert output.err.count("\n") == 1


@WITHOUT_A_GPU
def test_cpu_is_the_default_and_gives_the_same_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "graph.npz", **user_arrays())
    results = []
    for device in ([], ["--device", "cpu"]):
        store = tmp_path / f"store{len(device)}"
        assert main(["--data", str(tmp_path / "graph.npz"), "--epochs", "2", "--json", "--store", str(store), *device]) == 0
        weights = next(store.glob("*/1/weights.safetensors")).read_bytes()
        results.append((weights, json.loads(capsys.readouterr().out)["scores"]))
    assert results[0] == results[1]


def test_the_default_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for options in (TrainOptions, RefreshOptions, TuneOptions):
        monkeypatch.setenv("SGF_DEVICE", "")
        parser = options.parser("sgf-train", None)
        assert parser.get_default("device") == "auto"
        text = " ".join(parser.format_help().split())
        assert "--device {auto,cpu,cuda} what computes (SGF_DEVICE, else auto); auto: a GPU if there is one" in text
        monkeypatch.setenv("SGF_DEVICE", "cpu")
        assert options.parser("sgf-train", None).get_default("device") == "cpu"
    monkeypatch.setenv("SGF_DEVICE", "gpu")
    assert main([]) == 2
    assert capsys.readouterr().err == "sgf-train: --device (SGF_DEVICE) is 'gpu': expected one of auto, cpu, cuda\n"
