"""What a GPU must compute: what the CPU computes, within the rounding of float32. `python -m tests.gpu` prints the table."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from model_store import Store
from service.engines.engine import engine_for
from sgformer import FullForward, SGFormer, device, summarize
from sgformer.device import choose_device
from sgformer.full_graph import passes
from sgformer.sums import SUM_NAMES
from tests.service.serving import in_thread
from tests.training.samples import config
from training.__main__ import main
from training.data.datasets.synthetic import generate
from training.data.labelled import TRAIN
from training.fit import tasks
from training.fit.loop import Stopped, TrainingConfig, train

EXACT = {"attention_dropout": 0.0, "gnn_dropout": 0.0, "hidden": 32, "gnn_input": "own"}
DIGITS = ("--dataset", "digits", "--json")
NEW = {"id": "new", "features": [1.0] * 64, "neighbors": [3, 14]}


class Check(NamedTuple):
    name: str
    expected: str
    seen: str
    passed: bool

    @classmethod
    def at_most(cls, name: str, value: float, bound: float) -> Check:
        return cls(name, f"at most {bound:.0e}", f"{value:.1e}", value <= bound)

    @classmethod
    def equal(cls, name: str, value: object, expected: object) -> Check:
        return cls(name, str(expected), str(value), value == expected)


def all_checks(wanted: str, processes: int, folder: Path) -> Iterator[Check]:
    """`wanted`: cuda, or cpu to try the checks themselves. `processes`: as many as there are GPUs."""
    place = choose_device(wanted)
    yield from check_step(place)
    yield from check_resume(place, folder / "checkpoint")
    yield from check_full_forward(place)
    yield from check_commands(wanted, folder / "store")
    yield from check_serving(wanted, folder / "store")
    if processes > 1:
        yield from check_processes(wanted, folder / "shared")
    else:
        yield Check("two processes, by nccl", "run with two GPUs", "NOT RUN", True)


def check_step(place: str) -> Iterator[Check]:
    (loss, gradients), (other_loss, other_gradients) = _step("cpu"), _step(place)
    yield Check.at_most("a step of training: loss", abs(loss - other_loss), 1e-5)
    differences = [_difference(gradients[name], other_gradients[name]) for name in gradients]
    yield Check.at_most("a step of training: gradients", max(differences), 1e-4)


def check_resume(place: str, checkpoint: Path) -> Iterator[Check]:
    """With dropout, whose random numbers are those of the device."""
    data = generate(600, 2400, features=6, classes=3)
    model, settings = config(data), TrainingConfig(4, batch_nodes=300)
    whole = train(model, data, settings, device=place)
    with pytest.raises(Stopped):
        train(model, data, settings, checkpoint=checkpoint, stop=lambda: True, device=place)
    resumed = train(model, data, settings, checkpoint=checkpoint, resume=True, device=place)
    difference = abs(whole.history[-1].loss - resumed.history[-1].loss)
    yield Check.at_most("a stopped and resumed training: loss", difference, 1e-3)


def check_full_forward(place: str) -> Iterator[Check]:
    expected = _full_forward("cpu")
    for mode, block_rows, share in (
        ("", passes.BLOCK_ROWS, device.MEMORY_SHARE),
        (", in blocks", 700, device.MEMORY_SHARE),
        (", more states than memory", 700, 0.0),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(passes, "BLOCK_ROWS", block_rows)
            patch.setattr(device, "MEMORY_SHARE", share)
            arrays = _full_forward(place)
        largest = max(_difference(*pair) for pair in zip(expected, arrays, strict=True))
        yield Check.at_most(f"the full forward{mode}", largest, 1e-4)


def check_commands(wanted: str, store: Path) -> Iterator[Check]:
    """Publishing compares the snapshot with probes that are computed on the CPU."""
    flags = ("--device", wanted, "--store", str(store))
    result = _run(*DIGITS, "--epochs", "60", "--activate", *flags)
    accuracy = result["scores"]["test"]["accuracy"]
    yield Check("sgf-train: accuracy on digits", "at least 0.9", f"{accuracy:.3f}", accuracy >= 0.9)
    yield Check.equal("sgf-train refresh: version", _run("refresh", *DIGITS, *flags)["version"], 2)
    with Store(store).model("digits").open(1) as one, Store(store).model("digits").open(2) as two:
        differences = [_difference(*pair) for pair in zip(one.states.layers, two.states.layers, strict=True)]
    yield Check.at_most("sgf-train refresh: states", max(differences), 1e-4)


def check_serving(wanted: str, store: Path) -> Iterator[Check]:
    place, answers = choose_device(wanted), []
    with Store(store).model("digits").open() as snapshot:
        name = engine_for(snapshot, "auto", wanted).name  # type: ignore[arg-type]
    yield Check.equal(f"SGF_DEVICE={wanted}: engine", name, "numpy" if place == "cpu" else f"torch ({place})")
    for chosen in ("cpu", wanted):
        with in_thread(store, device=chosen) as client:
            response = client.post("/embed", json={"nodes": [0, 7], "new_nodes": [NEW]}).raise_for_status().json()
        answers.append(np.array([node["embedding"] for node in response["predictions"]]))
    yield Check.at_most(f"SGF_DEVICE={wanted}: answers", _difference(*answers), 1e-4)


def check_processes(wanted: str, store: Path) -> Iterator[Check]:
    flags = ("--processes", "2", "--device", wanted, "--store", str(store))
    for words in ((*DIGITS, "--epochs", "5", "--batch-nodes", "500", "--activate"), ("refresh", *DIGITS)):
        done = subprocess.run(
            [sys.executable, "-m", "training", *words, *flags], capture_output=True, text=True, check=False
        )
        name = "refresh" if words[0] == "refresh" else "training"
        yield Check.equal(f"two processes: exit code of {name}", done.returncode, 0)
        if done.returncode:
            sys.stderr.write(done.stderr)
            return
    _run("refresh", *DIGITS, "--device", "cpu", "--store", str(store))
    with Store(store).model("digits").open(2) as two, Store(store).model("digits").open(3) as one:
        differences = [_difference(*pair) for pair in zip(one.states.layers, two.states.layers, strict=True)]
    yield Check.at_most("two processes: states", max(differences), 1e-4)


def _step(place: str) -> tuple[float, dict[str, Any]]:
    data = generate(3000, 12_000, features=16, classes=4)
    torch.manual_seed(0)
    model = SGFormer(config(data, **EXACT)).to(place)
    nodes = torch.from_numpy(data.nodes(TRAIN))
    logits = model(model.prepare(data.graph), nodes.to(place))
    loss = tasks.loss(logits, torch.from_numpy(data.labels)[nodes].to(place), data.task)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item(), {
        name: weight.grad.cpu().numpy() for name, weight in model.named_parameters() if weight.grad is not None
    }


def _full_forward(place: str) -> list[Any]:
    data = generate(3000, 12_000, features=16, classes=4)
    torch.manual_seed(0)
    model = SGFormer(replace(config(data, **EXACT), layers=3))
    weights = model.weights()
    summary = summarize(model.config, weights, data.graph, device=place)
    logits = FullForward(model.config, data.graph, device=place).logits(weights)
    states = summary.states
    sums = [np.asarray(getattr(summary.sums, name)) for name in SUM_NAMES]
    return [states.inputs, *states.layers, *states.aggregates, *sums, logits]


def _difference(array: Any, other: Any) -> float:
    """The largest difference, relative to the largest value."""
    array, other = np.asarray(array, dtype=np.float64), np.asarray(other, dtype=np.float64)
    return float(np.abs(array - other).max() / max(np.abs(array).max(), 1e-12))


def _run(*words: str) -> Any:
    output = io.StringIO()
    with redirect_stdout(output):
        code = main(words)
    assert code == 0, f"sgf-train {' '.join(words)} ended with {code}"
    return json.loads(output.getvalue())
