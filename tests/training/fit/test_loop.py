"""Every task learns, mini-batches are induced subgraphs, and a killed run that is resumed gives the same weights."""

from __future__ import annotations

import mmap
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given

from model_store import Store
from sgformer import ConfigError, Graph, SGFormer, SparseRows
from tests.sgformer.cases import graphs
from tests.training.samples import config, labelled
from training.__main__ import main
from training.data.graph_folder.importing import import_graph
from training.data.labelled import TRAIN
from training.data.user_data import read_user_data
from training.fit import tasks
from training.fit.batches import Subgraphs, partition_of, random_partition
from training.fit.checkpoint import CheckpointError
from training.fit.loop import Epoch, Stopped, TrainingConfig, TrainingError, _optimizer, train
from training.fit.scratch import on_disk


@pytest.mark.parametrize(("task", "least"), [("multiclass", 0.7), ("multilabel", 0.85), ("regression", 0.3)])
@pytest.mark.parametrize("batch_nodes", [None, 100])
def test_every_task_learns(task: Any, least: float, batch_nodes: int | None) -> None:
    data = labelled(task)
    settings = TrainingConfig(epochs=60, learning_rate=0.02, batch_nodes=batch_nodes)
    trained = train(config(data, attention_dropout=0.0, gnn_dropout=0.0), data, settings)
    assert trained.scores["test"][data.metric] > least
    assert trained.best.validation == max(epoch.validation for epoch in trained.history)
    assert set(trained.scores) == {"train", "validation", "test"}


def test_patience_ends_a_run_that_does_not_improve() -> None:
    data = labelled()
    frozen = config(data, gnn_batch_norm=False)  # its running statistics change even with a learning rate of 0
    trained = train(frozen, data, TrainingConfig(epochs=500, learning_rate=0.0, patience=3))
    assert len(trained.history) == 4


def test_each_branch_has_its_own_weight_decay() -> None:
    model = SGFormer(config(labelled(), gnn_input="own"))
    optimizer = _optimizer(model, TrainingConfig(weight_decay=0.1, gnn_weight_decay=0.2))
    by_id = {id(tensor): group["weight_decay"] for group in optimizer.param_groups for tensor in group["params"]}
    decays = {name: by_id[id(tensor)] for name, tensor in model.named_parameters()}
    assert {name.partition(".")[0] for name, decay in decays.items() if decay == 0.2} == {
        "graph_input",
        "graph_input_norm",
        "graph_layers",
        "output",
    }
    assert {name.partition(".")[0] for name, decay in decays.items() if decay == 0.1} == {
        "input",
        "input_norm",
        "query",
        "key",
        "value",
        "attention_norm",
    }


@pytest.mark.parametrize("task", ["multiclass", "regression"])
def test_training_that_diverges_raises(task: Any) -> None:
    data = labelled(task)
    with pytest.raises(TrainingError, match=r"epoch \d+: loss .*a smaller learning rate\?"):
        train(config(data, input_layer_norm=False), data, TrainingConfig(epochs=30, learning_rate=1e30))


def test_a_split_without_validation_is_refused() -> None:
    data = labelled()
    with pytest.raises(ConfigError, match="the split has no validation nodes"):
        train(config(data), replace(data, split=np.zeros_like(data.split)), TrainingConfig(epochs=1))


def test_a_partition_has_every_node_once_and_no_batch_of_one() -> None:
    for count, size in ((10, 3), (10, 5), (7, 3), (5, 100)):
        batches = list(random_partition(count, size, np.random.default_rng(0)))
        assert sorted(np.concatenate(batches).tolist()) == list(range(count))
        assert min(map(len, batches)) >= 2


def test_the_partition_of_the_first_epoch_does_not_follow_the_split() -> None:
    data = labelled()
    for epoch in range(3):
        shares = [(data.split[part] == TRAIN).mean() for part in partition_of(epoch, data.graph.num_nodes, 60, 0)]
        assert min(shares) > 0.2
        assert max(shares) < 0.8


@given(graphs(sparse=False))
def test_an_induced_graph_has_the_edges_among_its_nodes(graph: Graph) -> None:
    check_induced(graph)


@given(graphs(sparse=True))
def test_an_induced_graph_of_sparse_features(graph: Graph) -> None:
    check_induced(graph)


def check_induced(graph: Graph) -> None:
    nodes = np.flatnonzero(np.random.default_rng(graph.num_nodes).random(graph.num_nodes) < 0.6)
    part = Subgraphs(graph).induced(nodes)
    edges = graph.adjacency.edge_index()
    place = {node: number for number, node in enumerate(nodes.tolist())}
    expected = {(place[a], place[b]) for a, b in edges.T.tolist() if a in place and b in place}
    assert {(a, b) for a, b in part.adjacency.edge_index().T.tolist()} == expected
    whole, rows = (
        features.toarray() if isinstance(features, SparseRows) else features for features in (graph.features, part.features)
    )
    np.testing.assert_array_equal(rows, whole[nodes])


def test_subgraphs_do_not_depend_on_earlier_ones() -> None:
    graph = labelled().graph
    subgraphs = Subgraphs(graph)
    first, second = np.arange(0, 300, 2), np.arange(0, 300, 3)
    subgraphs.induced(first)
    edges, expected = (maker.induced(second).adjacency.edge_index() for maker in (subgraphs, Subgraphs(graph)))
    np.testing.assert_array_equal(edges, expected)


@pytest.mark.parametrize("batch_nodes", [None, 100])
def test_a_mapped_graph_trains_to_the_same_weights(tmp_path: Path, batch_nodes: int | None) -> None:
    """Its states are in files without a name, which a killed run does not leave behind."""
    made = labelled()
    arrays = {"x": made.graph.features, "edge_index": made.graph.adjacency.edge_index(), "y": made.labels}
    np.savez(tmp_path / "graph.npz", **arrays, split=made.split)
    import_graph(tmp_path / "graph.npz", tmp_path / "folder")
    runs = []
    for path in (tmp_path / "graph.npz", tmp_path / "folder"):
        data = read_user_data(path)
        training = TrainingConfig(epochs=3, batch_nodes=batch_nodes)
        runs.append(train(config(data, feature_transform="standard"), data, training))
    (weights, history, logits), other = ((run.model.weights(), run.history, run.logits) for run in runs)
    assert history == other[1]
    np.testing.assert_array_equal(logits, other[2])
    assert isinstance(other[2].base, mmap.mmap) == (batch_nodes is not None), "a run in batches keeps its logits in a file"
    for name, array in weights.items():
        np.testing.assert_array_equal(array, other[0][name])


def test_scratch_arrays_have_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    array = on_disk("layer_1", (5, 3), np.dtype(np.float32))
    array[:] = 7
    assert array.sum() == 105
    assert not list(tmp_path.iterdir())
    assert on_disk("empty", (0, 3), np.dtype(np.float32)).shape == (0, 3)


def test_label_smoothing_spreads_a_share_of_every_label_over_all_classes() -> None:
    logits, labels = torch.randn(7, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2, 2])
    targets = 0.9 * torch.eye(3, dtype=torch.float64)[labels] + 0.1 / 3
    expected = -(targets * logits.log_softmax(dim=1)).sum(dim=1).mean()
    torch.testing.assert_close(tasks.loss(logits, labels, "multiclass", 0.1), expected, rtol=1e-12, atol=0)
    data = labelled()
    smooth, sharp = (
        train(config(data), data, TrainingConfig(epochs=1, label_smoothing=share)).history[0].loss for share in (0.5, 0.0)
    )
    assert smooth != sharp, "the training uses it"


def test_scores_ignore_unlabelled_entries() -> None:
    labels = np.array([[1.0, np.nan], [0.0, 1.0], [np.nan, np.nan], [1.0, 0.0]])
    logits = np.array([[2.0, -9.0], [-1.0, 1.0], [9.0, 9.0], [1.0, -2.0]])
    for name in ("roc_auc", "macro_f1", "accuracy"):
        assert tasks.score(name, logits, labels, "multilabel") == 1
    values = np.array([[1.0], [5.0]])
    assert tasks.score("mae", values, np.array([3.0, np.nan]), "regression") == 2
    assert tasks.better("mae", 1, 2)
    assert tasks.better("r2", 2, 1)


@pytest.mark.parametrize("batch_nodes", [None, 100])
def test_a_stopped_and_resumed_run_gives_the_same_weights(tmp_path: Path, batch_nodes: int | None) -> None:
    data = labelled()
    settings = TrainingConfig(epochs=12, batch_nodes=batch_nodes, seed=3)
    whole = train(config(data), data, settings)
    checkpoint = tmp_path / "run.safetensors"
    epochs: list[Epoch] = []
    with pytest.raises(Stopped):
        train(config(data), data, settings, epochs.append, checkpoint=checkpoint, stop=lambda: len(epochs) == 5)
    seen: list[Epoch] = []
    resumed = train(config(data), data, settings, seen.append, checkpoint=checkpoint, resume=True)
    assert tuple(seen) == whole.history == resumed.history
    for name, array in whole.model.weights().items():
        np.testing.assert_array_equal(array, resumed.model.weights()[name])
    again = train(config(data), data, settings, checkpoint=checkpoint, resume=True)
    assert again.history == whole.history, "a finished run is not trained again"


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    data, checkpoint = labelled(), tmp_path / "run.safetensors"
    with pytest.raises(Stopped):
        train(config(data), data, TrainingConfig(epochs=9), checkpoint=checkpoint, stop=lambda: True)
    with pytest.raises(CheckpointError, match="belongs to a run with another training; start without --resume"):
        train(config(data), data, TrainingConfig(epochs=8), checkpoint=checkpoint, resume=True)
    other = replace(data, labels=np.roll(data.labels, 1))
    with pytest.raises(CheckpointError, match="belongs to a run with another data"):
        train(config(data), other, TrainingConfig(epochs=9), checkpoint=checkpoint, resume=True)
    checkpoint.write_bytes(b"hello")
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        train(config(data), data, TrainingConfig(epochs=9), checkpoint=checkpoint, resume=True)


KILLS = int(os.environ.get("SGF_TRAINING_KILLS", "1"))


def command(store: Path, *flags: str) -> list[str]:
    settings = ["--dataset", "digits", "--epochs", "100", "--hidden", "16", "--seed", "5", "--checkpoint-every", "0"]
    return [sys.executable, "-m", "training", *settings, "--json", "--store", str(store), *flags]


def test_a_killed_and_resumed_run_gives_the_same_weights(tmp_path: Path) -> None:
    """A training process is killed with SIGKILL at random times and resumed each time."""
    subprocess.run(command(tmp_path / "a" / "models"), check=True, capture_output=True)
    moments, kills = random.Random(0), 0  # noqa: S311  # moments, not secrets
    checkpoint = tmp_path / "b" / "training" / "digits.safetensors"
    while kills < KILLS:
        process = subprocess.Popen(command(tmp_path / "b" / "models", "--resume"), stdout=subprocess.DEVNULL)
        before, began = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0, time.monotonic()
        while process.poll() is None and time.monotonic() - began < 60:
            if checkpoint.exists() and checkpoint.stat().st_mtime_ns != before:
                break
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.1))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
        else:
            break
    assert kills == KILLS, "the run ended before it was killed often enough"
    subprocess.run(command(tmp_path / "b" / "models", "--resume"), check=True, capture_output=True)
    uninterrupted, killed = (Store(tmp_path / place / "models").model("digits").open(1) for place in ("a", "b"))
    with uninterrupted, killed:
        assert uninterrupted.weights.keys() == killed.weights.keys()
        for name, array in uninterrupted.weights.items():
            np.testing.assert_array_equal(array, killed.weights[name])
        assert uninterrupted.manifest.scores == killed.manifest.scores


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_stopped_by_a_signal_can_be_resumed(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(command(tmp_path / "models", "--epochs", "100000"), stderr=subprocess.PIPE, text=True)
    checkpoint = tmp_path / "training" / "digits.safetensors"
    began = time.monotonic()
    while not checkpoint.exists() and time.monotonic() - began < 60:
        time.sleep(0.05)
    os.kill(process.pid, number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.startswith("sgf-train: stopped; the same command with --resume continues from ")
    kept = checkpoint.read_bytes()
    assert not (tmp_path / "models").exists()
    assert main([*command(tmp_path / "models", "--epochs", "1", "--no-publish")[3:]]) == 0
    assert checkpoint.with_suffix(".earlier.safetensors").read_bytes() == kept, (
        "a new run renames the checkpoint of a stopped run"
    )
