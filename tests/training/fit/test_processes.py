"""Several processes train as one process with their batches would, and publish what one would publish."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from safetensors.numpy import load_file
from torch.multiprocessing import ProcessExitedException

from model_store import Store
from model_store.publish import shared_forward
from sgformer import ConfigError, SGFormer
from sgformer.sums import SUM_NAMES
from tests.ranks import run_ranks
from tests.service.serving import until
from tests.training.samples import config, labelled
from training.__main__ import main
from training.cli.launching import report
from training.data.datasets.synthetic import generate
from training.data.labelled import TRAIN
from training.fit import processes, tasks
from training.fit.batches import Subgraphs, partition_of
from training.fit.loop import Epoch, Stopped, TrainingConfig, _optimizer, train
from training.fit.processes import ProcessesDisagreeError, rank, require_shared, share_of
from training.release.publishing import publish

EXACT = {"attention_dropout": 0.0, "gnn_dropout": 0.0}
TRAINING = TrainingConfig(epochs=4, batch_nodes=32, learning_rate=0.01)
"""A partition of 300 nodes has 10 batches: two processes make 5 steps of it, 20 in all."""


def train_exactly(checkpoint: Path) -> tuple[Any, Any, Any]:
    data = labelled()
    trained = train(config(data, **EXACT), data, TRAINING, checkpoint=checkpoint)
    return trained.model.weights(), trained.history, trained.logits


def train_in_one_process(count: int) -> SGFormer:
    """The same steps, each with the mean loss of `count` batches, written out."""
    data = labelled()
    torch.manual_seed(TRAINING.seed)
    model = SGFormer(config(data, **EXACT))
    model.fit_features(data.graph)
    optimizer, subgraphs = _optimizer(model, TRAINING), Subgraphs(data.graph)
    for epoch in range(TRAINING.epochs):
        batches = list(partition_of(epoch, data.graph.num_nodes, 32, TRAINING.seed))
        batches += batches[: -len(batches) % count]
        for start in range(0, len(batches), count):
            optimizer.zero_grad()
            for members in batches[start : start + count]:
                nodes = np.flatnonzero(data.split[members] == TRAIN)
                logits = model(model.prepare(subgraphs.induced(members)), torch.from_numpy(nodes))
                loss = tasks.loss(logits, torch.from_numpy(data.labels[members[nodes]]), data.task)
                (loss / count).backward()
            optimizer.step()
    return model


@pytest.mark.parametrize("one_host", [True, False])
def test_steps_are_those_of_one_process_with_all_batches(tmp_path: Path, one_host: bool) -> None:
    (weights, history, logits), (other_weights, other_history, other_logits) = run_ranks(
        train_exactly, 2, tmp_path / "last", one_host=one_host
    )
    assert history == other_history
    assert len(history) == 4
    np.testing.assert_array_equal(logits, other_logits)
    for name, array in weights.items():
        np.testing.assert_array_equal(array, other_weights[name])
    after_20_steps = load_file(tmp_path / "last")
    for name, parameter in train_in_one_process(2).named_parameters():
        np.testing.assert_allclose(after_20_steps[f"model.{name}"], parameter.detach().numpy(), rtol=0, atol=1e-5)


def train_with_a_stop(checkpoint: Path, stop_after: int | None, resume: bool) -> tuple[Any, list[Epoch]]:
    """With dropout and batch norms. `stop_after`: only the first process is asked to stop."""
    data, history = labelled(), []

    def stop() -> bool:
        return rank() == 0 and stop_after is not None and len(history) >= stop_after

    try:
        model = config(data, gnn_batch_norm=True, gnn_input="own")
        trained = train(model, data, TRAINING, history.append, checkpoint=checkpoint, resume=resume, stop=stop)
    except Stopped:
        return None, history
    return trained.model.weights(), history


def test_a_run_is_resumed_with_the_same_and_with_another_number_of_processes(tmp_path: Path) -> None:
    expected, history = run_ranks(train_with_a_stop, 2, tmp_path / "whole", None, False)[0]
    (nothing, before), (also_nothing, _) = run_ranks(train_with_a_stop, 2, tmp_path / "stopped", 2, False)
    assert nothing is also_nothing is None
    assert before == history[:2]
    stopped = (tmp_path / "stopped").read_bytes()
    weights, again = run_ranks(train_with_a_stop, 2, tmp_path / "stopped", None, True)[1]
    assert again == history
    for name, array in expected.items():
        np.testing.assert_array_equal(array, weights[name])
    (tmp_path / "stopped").write_bytes(stopped)
    _, alone = train_with_a_stop(tmp_path / "stopped", None, True)
    assert alone[:2] == history[:2]
    assert len(alone) == 4


@pytest.mark.parametrize(("count", "size"), [(1, 4), (2, 8), (5, 3), (6, 3), (0, 2)])
def test_every_process_makes_equally_many_steps(monkeypatch: pytest.MonkeyPatch, count: int, size: int) -> None:
    """A process without a step would leave the others waiting for its gradients."""
    items, shares = [np.array([number]) for number in range(count)], []
    monkeypatch.setattr(processes, "world_size", lambda: size)
    for number in range(size):
        monkeypatch.setattr(processes, "rank", lambda number=number: number)
        shares.append([int(item[0]) for item in share_of(items)])
    assert {len(share) for share in shares} == {-(-count // size)}
    assert {item for share in shares for item in share} == set(range(count))


def refused() -> list[str]:
    data, messages = labelled(), []
    other = replace(data, labels=np.roll(data.labels, rank()))
    for graph, settings in ((data, replace(TRAINING, batch_nodes=None)), (other, TRAINING)):
        with pytest.raises((ConfigError, ProcessesDisagreeError)) as caught:
            train(config(data), graph, settings)
        messages.append(str(caught.value))
    return messages


def test_what_several_processes_cannot_do_is_refused() -> None:
    assert (
        run_ranks(refused, 2)
        == [
            [
                "several processes train in batches: give their size with --batch-nodes",
                "rank 1 has read other data than rank 0: all processes need the same files",
            ]
        ]
        * 2
    )


def find_the_store(store: Path, blind: int | None) -> str:
    """`blind`: a process on a machine that does not share the store."""
    processes.SHARED_SECONDS = 0.3
    if rank() == blind:
        Path.exists = lambda _self: False  # type: ignore[method-assign]
    try:
        require_shared(store)
    except ProcessesDisagreeError as error:
        return str(error)
    return ""


def test_a_store_that_a_process_does_not_see_is_found_before_the_training(tmp_path: Path) -> None:
    store = tmp_path / "new" / "models"
    assert run_ranks(find_the_store, 2, store, None) == ["", ""]
    assert (
        run_ranks(find_the_store, 2, store, 1)
        == [
            f"rank 1 does not see the store of rank 0, {store}: "
            "the store must be on a file system that all machines share, under the same path"
        ]
        * 2
    )
    assert not list(store.iterdir())


def test_the_first_process_of_every_machine_prints_a_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The data may be missing on the second machine only."""
    printed = {}
    for number, (on_machine, error) in enumerate(((0, "no file"), (1, "no file"), (0, "no file"), (1, OSError("full")))):
        monkeypatch.setenv("RANK", str(number))
        monkeypatch.setenv("LOCAL_RANK", str(on_machine))
        report(error)
        printed[number] = capsys.readouterr().err
    assert printed == {0: "sgf-train: no file\n", 1: "", 2: "sgf-train: rank 2: no file\n", 3: "sgf-train: rank 3: full\n"}


def publish_together(store: Path, name: str, states: str, dies: bool = False, device: str = "cpu") -> str:
    data = generate(20_000, 60_000, features=6)  # three chunks of rows
    torch.manual_seed(0)
    model = SGFormer(config(data, gnn_input="own")).eval()
    if rank() == 0:
        publish(model, data.graph, store=store, name=name, states=states, device=device)
    else:
        if dies:
            dist.barrier = lambda: os.kill(os.getpid(), signal.SIGKILL)
        shared_forward.assist(model.config, model.weights(), data.graph, device)
    return name


@pytest.mark.parametrize("one_host", [True, False])
@pytest.mark.parametrize(("states", "count"), [("float32", 2), ("float16", 2), ("float32", 4)])
def test_every_process_writes_its_rows_of_a_snapshot(tmp_path: Path, states: str, count: int, one_host: bool) -> None:
    """Four processes share three chunks of rows: one of them has none."""
    publish_together(tmp_path, "one", states)
    run_ranks(publish_together, count, tmp_path, "two", states, one_host=one_host)
    store = Store(tmp_path)
    with store.model("one").open(1) as one, store.model("two").open(1) as two:
        two.replay()
        for name in SUM_NAMES:
            np.testing.assert_allclose(getattr(one.sums, name), getattr(two.sums, name), rtol=1e-12)
        for array, other in zip(
            (one.states.inputs, *one.states.layers, *one.states.aggregates),
            (two.states.inputs, *two.states.layers, *two.states.aggregates),
            strict=True,
        ):
            np.testing.assert_allclose(array, other, rtol=1e-6, atol=1e-6)
        tensors, others = one.probes.to_tensors(), two.probes.to_tensors()
        assert tensors.keys() == others.keys()
        for name, tensor in tensors.items():
            np.testing.assert_allclose(tensor, others[name], rtol=1e-5, atol=1e-6)
    assert not list((tmp_path / "two").glob(".publishing*"))


def test_a_process_that_dies_while_it_writes_leaves_no_version(tmp_path: Path) -> None:
    with pytest.raises(ProcessExitedException, match="SIGKILL"):
        run_ranks(publish_together, 2, tmp_path, "two", "float32", True)
    assert not list(tmp_path.glob("two/[1-9]*"))
    publish_together(tmp_path, "two", "float32")  # removes what the killed processes left
    assert sorted(path.name for path in (tmp_path / "two").iterdir() if path.is_dir()) == ["1"]


def test_a_killed_process_ends_the_run_with_a_message_and_one_process_resumes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = labelled()
    arrays = {"x": data.graph.features, "edge_index": data.graph.adjacency.edge_index(), "y": data.labels}
    np.savez(tmp_path / "graph.npz", **arrays)
    words = ["--data", str(tmp_path / "graph.npz"), "--store", str(tmp_path / "models"), "--batch-nodes", "100", "--json"]
    words += ["--epochs", "150", "--patience", "150", "--checkpoint-every", "0", "--hidden", "8"]
    events = tmp_path / "events"
    command = [sys.executable, "-m", "training", *words, "--processes", "2", "--events", str(events)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        until(lambda: events.exists() and '"epoch"' in events.read_text(), 120)
        children = psutil.Process(run.pid).children(recursive=True)
        (second,) = (child for child in children if child.environ().get("RANK") == "1")
        second.kill()
        output, errors = run.communicate(timeout=60)
    assert run.returncode == 1
    assert output == ""
    assert "sgf-train: rank 1 was killed by SIGKILL, and the run has ended: nothing was published" in errors
    assert "Traceback" not in errors
    assert not list((tmp_path / "models").glob("*/1"))
    assert main([*words, "--resume"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == 1
