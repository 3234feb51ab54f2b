"""What a retraining needs of the command line: events, a warm start, and data that has grown."""

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

from model_store import Store
from model_store.versions.leftovers import LOCK
from model_store.versions.locks import exclusive
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


def test_events_tell_a_run_from_its_start_to_its_end(tmp_path: Path) -> None:
    write_graph(tmp_path / "graph.npz")
    assert run(tmp_path, "--epochs", "3", "--activate", "if_better", "--job", "j1", "--no-checkpoint") == 0
    told = events(tmp_path / "events")
    kinds = ["started", "data", "epoch", "published", "verdict", "activated", "finished"]
    assert list(dict.fromkeys(one["event"] for one in told)) == kinds
    numbers = [one["number"] for one in told if one["event"] == "epoch"]
    assert (numbers[0], numbers[-1]) == (1, 3)
    told = list({one["event"]: one for one in told}.values())
    assert told[0]["pid"] == os.getpid()
    assert (told[1]["parent"], told[1]["settings"]["hidden"], told[1]["settings"]["epochs"]) == (None, 8, 3)
    manifest = Store(tmp_path / "models").model("demo").manifest(1)
    assert manifest.dataset["sha256"] == told[1]["sha256"]
    assert manifest.training["job"] == "j1"
    assert told[3]["snapshot"] == manifest.snapshot
    assert told[4]["reason"].startswith("no version was live")
    assert set(told[4]["probes"]) == {"known", "ordinary", "isolated", "hub", "joint"}
    assert told[6]["result"]["live"] is True
    assert not (tmp_path / "training").exists(), "no checkpoint was wanted"


def test_a_retraining_prunes_versions_that_the_gate_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_graph(tmp_path / "graph.npz")
    for version in (1, 2, 3):
        run(tmp_path, "--epochs", "1", "--no-checkpoint", "--activate", "always" if version < 3 else "never")
    versions = Store(tmp_path / "models").model("demo")
    reader = versions.open(3)
    for _ in range(3):
        assert run(tmp_path, "--epochs", "1", "--no-checkpoint", "--activate", "never", "--keep", "2") == 0
    assert versions.versions() == [1, 2, 3, 5, 6], "the roll-back target, the live one, one that is read, the newest two"
    assert "removed old versions of demo: 4\n" in capsys.readouterr().err
    reader.close()
    where = ["--store", str(tmp_path / "models"), "--quiet"]
    assert main(["refresh", "--data", str(tmp_path / "graph.npz"), *where, "--keep", "1"]) == 0
    assert versions.versions() == [1, 2, 7]


def test_a_run_of_a_million_epochs_does_not_fill_the_disk() -> None:
    clock = itertools.count(0, 0.003)
    pace = EpochPace(lambda: next(clock))
    assert 300 < sum(pace.due() for _ in range(1_000_000)) < 1000


def test_a_failure_is_an_event_too(tmp_path: Path) -> None:
    write_graph(tmp_path / "graph.npz")
    assert run(tmp_path, "--warm-start") == 2
    assert events(tmp_path / "events")[-1]["error"] == "--warm-start: no version of demo is live to start from"


def test_a_file_that_is_no_npz_is_told_in_our_own_words(tmp_path: Path) -> None:
    (tmp_path / "graph.npz").write_text("x,y\n1,2\n")
    assert run(tmp_path) == 1
    assert events(tmp_path / "events")[-1]["error"] == "graph.npz is not an npz file (numpy.savez)"
    where = ["--store", str(tmp_path / "models"), "--model", "demo", "--events", str(tmp_path / "refresh")]
    assert main(["refresh", "--data", str(tmp_path / "graph.npz"), *where]) == 1
    assert events(tmp_path / "refresh")[-1]["error"] == "graph.npz is not an npz file (numpy.savez)"


def test_a_warm_start_takes_what_fits(tmp_path: Path) -> None:
    write_graph(tmp_path / "graph.npz", classes=2)
    assert run(tmp_path, "--epochs", "40", "--activate") == 0
    (tmp_path / "events").unlink()
    assert run(tmp_path, "--epochs", "1", "--lr", "0", "--warm-start", "--activate", "if_better") == 0
    told = {one["event"]: one for one in events(tmp_path / "events")}
    assert told["data"]["warm_start"]["fresh"] == []
    versions = Store(tmp_path / "models").model("demo")
    first, second = (versions.manifest(version).scores["test_accuracy"] for version in (1, 2))
    assert first == second, "with a learning rate of 0 it is the live model again"
    assert told["verdict"]["better"] is False
    assert (versions.live(), told["finished"]["result"]["live"]) == (1, False)
    write_graph(tmp_path / "graph.npz", classes=3)
    (tmp_path / "events").unlink()
    assert run(tmp_path, "--epochs", "2", "--warm-start") == 0
    told = {one["event"]: one for one in events(tmp_path / "events")}
    assert told["data"]["warm_start"]["fresh"] == ["output.weight", "output.bias"]
    assert told["data"]["warm_start"]["tensors"] > 5


def test_in_data_that_has_grown_every_node_keeps_its_part(tmp_path: Path) -> None:
    """So the champion has not trained on the nodes that the two are compared on, and the verdict says so."""
    write_graph(tmp_path / "graph.npz", nodes=400)
    before = read_user_data(tmp_path / "graph.npz")
    assert run(tmp_path, "--epochs", "1", "--activate") == 0
    write_graph(tmp_path / "graph.npz", nodes=600)
    after = read_user_data(tmp_path / "graph.npz")
    np.testing.assert_array_equal(after.split[:400], before.split)
    (tmp_path / "events").unlink()
    assert run(tmp_path, "--epochs", "40", "--warm-start", "--activate", "if_better") == 0
    told = {one["event"]: one for one in events(tmp_path / "events")}
    assert told["verdict"]["fair"] is True
    assert told["verdict"]["better"] is True
    with Store(tmp_path / "models").model("demo").open() as snapshot:
        assert snapshot.manifest.sizes.nodes == 600


@pytest.mark.parametrize("keys", [np.arange(5000), np.array([f"n{one}".encode() for one in range(5000)])])
def test_a_steady_split_keeps_its_shares_on_average(keys: Any) -> None:
    everybody = np.ones(5000, dtype=bool)
    split = steady_split(keys, everybody, seed=3, shares=(0.6, 0.3, 0.1))
    np.testing.assert_allclose(np.bincount(split) / 5000, [0.6, 0.3, 0.1], atol=0.02)
    assert (split != steady_split(keys, everybody, seed=4, shares=(0.6, 0.3, 0.1))).mean() > 0.3
    for count in range(2, 12):
        few = steady_split(keys[:count], everybody[:count], seed=0)
        assert {0, 1} <= set(few.tolist()), "somebody trains and somebody validates"


def test_sigterm_while_it_publishes_leaves_nothing_behind(tmp_path: Path) -> None:
    write_graph(tmp_path / "graph.npz", nodes=5_000)
    command = [sys.executable, "-m", "training", "--data", str(tmp_path / "graph.npz"), "--epochs", "1", "--no-checkpoint"]
    command += ["--store", str(tmp_path / "models"), "--model", "demo", "--events", str(tmp_path / "events")]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        folder = tmp_path / "models" / "demo"
        while not folder.exists() or not any(path.is_dir() for path in folder.iterdir()):
            assert process.poll() is None
            time.sleep(0.005)
        with exclusive(folder / LOCK):  # so that it cannot be done before the signal comes
            assert any(path.is_dir() for path in folder.iterdir())
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 130
    assert events(tmp_path / "events")[-1]["event"] == "stopped"
    assert [path.name for path in folder.iterdir() if path.name != ".lock"] == []
