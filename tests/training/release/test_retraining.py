"""Retraining from the command line: events, pruning, warm starts, and data that has grown."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from model_store import ModelVersions, Store
from model_store.versions.leftovers import LOCK
from model_store.versions.locks import exclusive
from sgformer.request_time.inference import InferenceModel
from sgformer.request_time.layers import GraphLayer
from tests.training.samples import labelled
from training.__main__ import main
from training.cli.events import EpochPace
from training.data.splits import steady_split
from training.data.user_data import read_user_data


def write_graph(path: Path, nodes: int = 400, classes: int = 3) -> Path:
    data = labelled(nodes=nodes)
    edges = data.graph.adjacency.edge_index()
    np.savez(path, x=data.graph.features, edge_index=edges, y=data.labels % classes)
    return path


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def run(folder: Path, *more: str) -> int:
    where = ["--store", str(folder / "models"), "--model", "demo", "--quiet", "--events", str(folder / "events")]
    return main(["--data", str(folder / "graph.npz"), "--hidden", "8", *where, *more])


def test_events_describe_a_run_from_start_to_end(tmp_path: Path) -> None:
    write_graph(tmp_path / "graph.npz")
    assert run(tmp_path, "--epochs", "3", "--activate", "if_better", "--job", "j1", "--no-checkpoint") == 0
    reported = events(tmp_path / "events")
    kinds = ["started", "data", "epoch", "published", "verdict", "activated", "finished"]
    assert list(dict.fromkeys(event["event"] for event in reported)) == kinds
    numbers = [event["number"] for event in reported if event["event"] == "epoch"]
    assert (numbers[0], numbers[-1]) == (1, 3)
    reported = list({event["event"]: event for event in reported}.values())
    assert reported[0]["pid"] == os.getpid()
    assert (reported[1]["parent"], reported[1]["settings"]["hidden"], reported[1]["settings"]["epochs"]) == (None, 8, 3)
    manifest = Store(tmp_path / "models").model("demo").manifest(1)
    assert manifest.dataset["sha256"] == reported[1]["sha256"]
    assert manifest.training["job"] == "j1"
    assert reported[3]["snapshot"] == manifest.snapshot
    assert reported[4]["reason"].startswith("no version was live")
    assert set(reported[4]["probes"]) == {"known", "ordinary", "isolated", "hub", "joint"}
    assert reported[6]["result"]["live"] is True
    assert not (tmp_path / "training").exists(), "the run has --no-checkpoint"


def test_a_retraining_prunes_old_versions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_graph(tmp_path / "graph.npz")
    for version in (1, 2, 3):
        run(tmp_path, "--epochs", "1", "--no-checkpoint", "--activate", "always" if version < 3 else "never")
    versions = Store(tmp_path / "models").model("demo")
    reader = versions.open(3)
    for _ in range(3):
        assert run(tmp_path, "--epochs", "1", "--no-checkpoint", "--activate", "never", "--keep", "2") == 0
    assert versions.versions() == [1, 2, 3, 5, 6], "roll-back target, live version, open version, newest two"
    assert "removed old versions of demo: 4\n" in capsys.readouterr().err
    reader.close()
    where = ["--store", str(tmp_path / "models"), "--quiet"]
    assert main(["refresh", "--data", str(tmp_path / "graph.npz"), *where, "--keep", "1"]) == 0
    assert versions.versions() == [1, 2, 7]


def test_the_next_run_removes_refused_versions_but_not_the_newest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_graph(tmp_path / "graph.npz")
    common = ["--epochs", "1", "--no-checkpoint"]
    assert run(tmp_path, *common, "--activate") == 0
    assert run(tmp_path, *common, "--activate", "never") == 0
    versions = Store(tmp_path / "models").model("demo")
    for version in (3, 4, 5):  # the same model again: the gate refuses it
        assert run(tmp_path, *common, "--activate", "if_better") == 0
        assert versions.versions() == [1, 2, version], "live version, version published with `never`, newest refused version"
    assert "removed old versions of demo: 4\n" in capsys.readouterr().err
    versions.activate(5)  # an operator overrules the gate
    assert run(tmp_path, *common, "--activate", "if_better") == 0
    assert versions.versions() == [1, 2, 5, 6]


@pytest.mark.parametrize(("nodes", "forwards"), [(400, 3), (500, 4)])
def test_a_retraining_runs_no_more_full_forwards_than_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int, forwards: int
) -> None:
    """Counts rows, by the two row-wise steps of every forward: the input layer and the GCN layers.

    A forward each validates the epoch, scores the best epoch, and fills the snapshot, whose states and answers the report,
    the probes and the gate share. The live version answers from its snapshot, or by a forward over data that has changed.
    The probes take one pass of the input layer, and some rows of the GCN layers.
    """
    write_graph(tmp_path / "graph.npz", nodes=400)
    assert run(tmp_path, "--epochs", "1", "--no-checkpoint", "--activate") == 0
    write_graph(tmp_path / "graph.npz", nodes=nodes)
    rows = {"inputs": 0, "layers": 0}
    inputs, layer = InferenceModel.inputs, GraphLayer.__call__

    def count_inputs(model: InferenceModel, features: Any) -> Any:
        rows["inputs"] += features.shape[0]
        return inputs(model, features)

    def count_layer(graph_layer: GraphLayer, aggregate: Any, initial: Any) -> Any:
        rows["layers"] += len(aggregate)
        return layer(graph_layer, aggregate, initial)

    monkeypatch.setattr(InferenceModel, "inputs", count_inputs)
    monkeypatch.setattr(GraphLayer, "__call__", count_layer)
    wanted = ["--epochs", "1", "--batch-nodes", "100", "--layers", "2", "--no-checkpoint", "--activate", "if_better"]
    assert run(tmp_path, *wanted) == 0
    assert rows["inputs"] // nodes == forwards + 1
    assert rows["layers"] // (2 * nodes) == forwards


def test_a_new_version_is_hashed_again_only_when_it_goes_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishing has hashed every file. The gate trusts that; activation verifies every byte."""
    write_graph(tmp_path / "graph.npz")
    opened, open_version = [], ModelVersions.open

    def record(versions: ModelVersions, version: Any = None, verify: Any = "full") -> Any:
        opened.append((version, verify))
        return open_version(versions, version, verify)

    monkeypatch.setattr(ModelVersions, "open", record)
    wanted = ["--no-checkpoint", "--activate", "if_better", "--epochs"]
    for epochs in ("1", "1", "40"):
        assert run(tmp_path, *wanted, epochs) == 0
    assert [opened.count((version, "full")) for version in (1, 2, 3)] == [1, 0, 1], "version 2 is refused"


def test_a_run_of_a_million_epochs_writes_few_events() -> None:
    clock = itertools.count(0, 0.003)
    pace = EpochPace(lambda: next(clock))
    assert 300 < sum(pace.due() for _ in range(1_000_000)) < 1000


def test_a_failure_is_an_event(tmp_path: Path) -> None:
    write_graph(tmp_path / "graph.npz")
    assert run(tmp_path, "--warm-start") == 2
    assert events(tmp_path / "events")[-1]["error"] == "--warm-start: no version of demo is live to start from"


def test_a_file_that_is_not_npz_is_named_in_the_error(tmp_path: Path) -> None:
    write_graph(tmp_path / "graph.npz")
    assert run(tmp_path, "--epochs", "1", "--activate") == 0
    (tmp_path / "graph.npz").write_text("x,y\n1,2\n")
    assert run(tmp_path) == 1
    assert events(tmp_path / "events")[-1]["error"] == "graph.npz is not an npz file (numpy.savez)"
    where = ["--store", str(tmp_path / "models"), "--model", "demo", "--events", str(tmp_path / "refresh")]
    assert main(["refresh", "--data", str(tmp_path / "graph.npz"), *where]) == 1
    assert events(tmp_path / "refresh")[-1]["error"] == "graph.npz is not an npz file (numpy.savez)"


def test_a_warm_start_takes_tensors_whose_shapes_fit(tmp_path: Path) -> None:
    write_graph(tmp_path / "graph.npz", classes=2)
    assert run(tmp_path, "--epochs", "40", "--activate") == 0
    (tmp_path / "events").unlink()
    assert run(tmp_path, "--epochs", "1", "--lr", "0", "--warm-start", "--activate", "if_better") == 0
    reported = {event["event"]: event for event in events(tmp_path / "events")}
    assert reported["data"]["warm_start"]["fresh"] == []
    versions = Store(tmp_path / "models").model("demo")
    first, second = (load_file(tmp_path / "models" / "demo" / version / "weights.safetensors") for version in "12")
    assert first.keys() == second.keys()
    for name in first:
        if ".running_" not in name:  # batch statistics are counted at every step
            np.testing.assert_array_equal(first[name], second[name], "with a learning rate of 0 it is the live model")
    assert reported["verdict"]["better"] is False
    assert (versions.live(), reported["finished"]["result"]["live"]) == (1, False)
    write_graph(tmp_path / "graph.npz", classes=3)
    (tmp_path / "events").unlink()
    assert run(tmp_path, "--epochs", "2", "--warm-start") == 0
    reported = {event["event"]: event for event in events(tmp_path / "events")}
    assert reported["data"]["warm_start"]["fresh"] == ["output.weight", "output.bias"]
    assert reported["data"]["warm_start"]["tensors"] > 5


def test_nodes_keep_their_part_of_the_split_when_the_data_grows(tmp_path: Path) -> None:
    """So the live version has not trained on the nodes that the two are compared on, and the verdict is fair."""
    write_graph(tmp_path / "graph.npz", nodes=400)
    before = read_user_data(tmp_path / "graph.npz")
    assert run(tmp_path, "--epochs", "1", "--activate") == 0
    write_graph(tmp_path / "graph.npz", nodes=600)
    after = read_user_data(tmp_path / "graph.npz")
    np.testing.assert_array_equal(after.split[:400], before.split)
    (tmp_path / "events").unlink()
    assert run(tmp_path, "--epochs", "40", "--warm-start", "--activate", "if_better") == 0
    reported = {event["event"]: event for event in events(tmp_path / "events")}
    assert reported["verdict"]["fair"] is True
    assert reported["verdict"]["better"] is True
    with Store(tmp_path / "models").model("demo").open() as snapshot:
        assert snapshot.manifest.sizes.nodes == 600


@pytest.mark.parametrize("keys", [np.arange(5000), np.array([f"n{number}".encode() for number in range(5000)])])
def test_a_steady_split_keeps_its_shares_on_average(keys: Any) -> None:
    labelled_nodes = np.ones(5000, dtype=bool)
    split = steady_split(keys, labelled_nodes, seed=3, shares=(0.6, 0.3, 0.1))
    np.testing.assert_allclose(np.bincount(split) / 5000, [0.6, 0.3, 0.1], atol=0.02)
    assert (split != steady_split(keys, labelled_nodes, seed=4, shares=(0.6, 0.3, 0.1))).mean() > 0.3
    for count in range(2, 12):
        few = steady_split(keys[:count], labelled_nodes[:count], seed=0)
        assert {0, 1} <= set(few.tolist()), "at least one node trains and one validates"


def test_sigterm_during_publishing_leaves_no_files(tmp_path: Path) -> None:
    write_graph(tmp_path / "graph.npz", nodes=5_000)
    command = [sys.executable, "-m", "training", "--data", str(tmp_path / "graph.npz"), "--epochs", "1", "--no-checkpoint"]
    command += ["--store", str(tmp_path / "models"), "--model", "demo", "--events", str(tmp_path / "events")]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        folder = tmp_path / "models" / "demo"
        while not folder.exists() or not any(path.is_dir() for path in folder.iterdir()):
            assert process.poll() is None
            time.sleep(0.005)
        with exclusive(folder / LOCK):  # publishing cannot end before the signal comes
            assert any(path.is_dir() for path in folder.iterdir())
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 130
    assert events(tmp_path / "events")[-1]["event"] == "stopped"
    assert [path.name for path in folder.iterdir() if path.name != ".lock"] == []
