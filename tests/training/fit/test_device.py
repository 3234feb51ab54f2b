"""Training on a device learns what it learns on the CPU, and no operation mixes the two (`tests.pretended`)."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from model_store import Store
from sgformer import Graph, SparseRows
from sgformer.device import DeviceError
from sgformer.full_graph import forward, passes
from tests.pretended import DEVICE, start_device
from tests.ranks import run_ranks
from tests.training.fit import test_processes
from tests.training.fit.test_processes import TRAINING, publish_together, train_in_one_process
from tests.training.samples import config, labelled
from training.__main__ import main
from training.cli import tune_command
from training.data.labelled import LabelledGraph
from training.data.python_graph import save_graph
from training.fit import processes
from training.fit.loop import Stopped, TrainingConfig, train
from training.fit.processes import process_group

EXACT = {"attention_dropout": 0.0, "gnn_dropout": 0.0, "hidden": 4}
DROPOUT = {"hidden": 4, "gnn_batch_norm": True, "gnn_input": "own", "layers": 1}
CASES: dict[str, tuple[str, bool, int | None, dict[str, Any]]] = {
    "full graph": ("multiclass", False, None, {"normalization": "row", "heads": 2}),
    "full graph, sparse features": ("multilabel", True, None, {"feature_transform": "standard", "gnn_batch_norm": True}),
    "batches": (
        "regression",
        False,
        50,
        {"gnn_input": "own", "gnn_batch_norm": False, "combine": "cat"},
    ),
    "batches, sparse features": ("multiclass", True, 50, {"gnn_input": "features", "feature_transform": "row"}),
}
"""Task, sparse features, nodes of a batch, settings of the model."""
COMMANDS = (
    "--data old.npz --epochs 1 --activate",  # publication
    "--data new.npz --epochs 1 --batch-nodes 60 --activate if_better",  # evaluation, publication, comparison
    "refresh --data old.npz",
    "tune --data old.npz --epochs 1 --batch-nodes 60 --trials 1 --out recipe.toml",
)


def data_of(task: str, sparse: bool) -> LabelledGraph:
    data = labelled(task, nodes=120)
    if not sparse:
        return data
    rows = data.graph.features
    entries = SparseRows(np.arange(0, rows.size + 1, 6), np.tile(np.arange(6), len(rows)), rows.reshape(-1), 6)
    return replace(data, graph=Graph(entries, data.graph.adjacency))


def train_cases(device: str) -> dict[str, Any]:
    results = {}
    for name, (task, sparse, batch_nodes, settings) in CASES.items():
        data = data_of(task, sparse)
        trained = train(config(data, **EXACT | settings), data, TrainingConfig(2, batch_nodes=batch_nodes), device=device)
        losses = np.array([epoch.loss for epoch in trained.history])
        results[name] = trained.model.weights() | {"logits": trained.logits, "losses": losses}
    return results


def train_with_a_stop(checkpoint: Path, device: str) -> tuple[Any, Any]:
    """The history of a run that is stopped and resumed, and of one that is not. With dropout."""
    data = labelled(nodes=120)
    model, settings = config(data, **DROPOUT), TrainingConfig(3)
    with pytest.raises(Stopped):
        train(model, data, settings, checkpoint=checkpoint, stop=lambda: True, device=device)
    resumed = train(model, data, settings, checkpoint=checkpoint, resume=True, device=device)
    return resumed.history, train(model, data, settings, device=device).history


def run_commands(folder: Path, device: str) -> dict[str, list[str]]:
    """For each command, the devices of the full forwards that it runs. The probes are always computed on the CPU."""
    os.chdir(folder)
    devices: list[str] = []

    class Recorded(passes.Passes):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            devices.append(str(self._device))

    forward.Passes = Recorded
    processes.choose_device = tune_command.choose_device = lambda wanted: {"cuda": device}[wanted]
    data = labelled(nodes=150)
    for name, features in (("old", data.graph.features), ("new", data.graph.features + 1)):
        save_graph(f"{name}.npz", data.graph.adjacency.edge_index(), x=features, y=data.labels)
    used = {}
    for command in COMMANDS:
        devices.clear()
        assert main([*command.split(), *["--device", "cuda", "--store", "store", "--model", "m", "--quiet"]]) == 0
        used[command] = [*devices]
    return used


def together(folder: Path) -> None:
    """Several processes, each with a device, train and publish."""
    device, data = start_device(nccl=True), labelled()
    train(config(data, **test_processes.EXACT), data, TRAINING, checkpoint=folder / "last", device=device)
    publish_together(folder, "device", "float32", device=device)


def on_device(folder: Path) -> tuple[Any, ...]:
    device = start_device()
    return train_cases(device), train_with_a_stop(folder / "checkpoint", device), run_commands(folder, device)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    return run_ranks(on_device, 1, tmp_path_factory.mktemp("store"))[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("case", CASES)
def test_training_on_the_device_equals_training_on_the_cpu(results: tuple[Any, ...], case: str) -> None:
    expected = train_cases("cpu")[case]
    assert results[0][case].keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(results[0][case][name], array, rtol=0, atol=1e-6)


def test_a_run_on_the_device_is_resumed(results: tuple[Any, ...]) -> None:
    resumed, whole = results[1]
    assert len(whole) == 3
    assert resumed == whole


def test_every_command_computes_on_the_device(results: tuple[Any, ...]) -> None:
    assert {command: set(devices) for command, devices in results[2].items()} == {command: {DEVICE} for command in COMMANDS}
    assert [len(devices) for devices in results[2].values()][:3] == [1, 3, 1]


def test_processes_with_a_device_each_train_and_publish(tmp_path: Path) -> None:
    run_ranks(together, 2, tmp_path)
    after_20_steps = load_file(tmp_path / "last")
    for name, parameter in train_in_one_process(2).named_parameters():
        np.testing.assert_allclose(after_20_steps[f"model.{name}"], parameter.detach().numpy(), rtol=0, atol=1e-5)
    publish_together(tmp_path, "cpu", "float32")
    store = Store(tmp_path)
    with store.model("cpu").open(1) as one, store.model("device").open(1) as other:
        for array, of_device in zip(one.states.layers, other.states.layers, strict=True):
            np.testing.assert_allclose(array, of_device, rtol=1e-6, atol=1e-6)


def test_too_little_memory_is_one_sentence_with_advice() -> None:
    def run_out_of_memory() -> None:
        with process_group("cpu"):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nMore lines")

    with pytest.raises(DeviceError) as caught:
        run_out_of_memory()
    assert str(caught.value) == (
        "the memory of the GPU does not suffice (CUDA out of memory. Tried to allocate 2 GiB.): "
        "train with a smaller --batch-nodes, or with --device cpu"
    )
