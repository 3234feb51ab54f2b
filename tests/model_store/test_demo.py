"""The demo snapshot of the package: it has the present format, answers its probes, and is what training makes today."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from model_store import Snapshot, SnapshotError, Store, demo
from model_store.__main__ import main
from model_store.format.layout import FORMAT
from sgformer import probabilities
from tests.model_store.samples import small_contents
from training.data.datasets import digits

MAX_BYTES = 3_000_000
MIN_AGREEMENT, MAX_MEAN_DIFFERENCE = 0.99, 0.01
"""Retraining against the packed snapshot: the share of nodes with the same label, and the mean difference of probabilities.
On the machine that packed the snapshot, the answers are equal to the last bit; another processor rounds sums differently."""


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    folder = tmp_path / "packed"
    with zipfile.ZipFile(demo.ARCHIVE) as archive:
        archive.extractall(folder)
    return folder


def full_graph_logits(version_folder: Path) -> NDArray[np.float32]:
    logits: NDArray[np.float32] = np.load(version_folder / "states" / "logits.npy")
    return logits


def test_the_packed_snapshot_is_small_has_the_present_format_and_answers_its_probes(packed: Path) -> None:
    assert demo.ARCHIVE.stat().st_size <= MAX_BYTES
    with Snapshot.open(packed) as snapshot:
        manifest = snapshot.manifest
        assert max(snapshot.replay().values()) <= manifest.probe_tolerance
        data = digits.with_drawing()[0]
        for stored, expected in (
            (snapshot.raw_features(), data.graph.features),
            (snapshot.labels, data.labels),
            (snapshot.split, data.split),
        ):
            np.testing.assert_array_equal(stored, expected)
    assert json.loads((packed / "manifest.json").read_text())["format"] == FORMAT
    assert (manifest.model, manifest.training["recipe"]) == (demo.MODEL, "digits")
    assert manifest.dataset["sha256"] == data.sha256(), "run `make demo-snapshot`: the data has changed"


def test_retraining_the_demo_gives_the_packed_answers(packed: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "training", "--recipe", "digits", "--no-checkpoint", "--quiet"]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*command, "--store", str(tmp_path / "store")], check=True, capture_output=True, env=environ)
    shipped, retrained = full_graph_logits(packed), full_graph_logits(tmp_path / "store" / demo.MODEL / "1")
    agreement = (shipped.argmax(axis=1) == retrained.argmax(axis=1)).mean()
    difference = np.abs(probabilities(shipped, "multiclass") - probabilities(retrained, "multiclass")).mean()
    assert agreement >= MIN_AGREEMENT, "run `make demo-snapshot`: training has changed"
    assert difference <= MAX_MEAN_DIFFERENCE, "run `make demo-snapshot`: training has changed"


def test_packing_a_folder_twice_gives_the_same_bytes(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "ARCHIVE", tmp_path / "again.zip")
    assert main(["demo", "--pack", str(packed)]) == 0
    first = demo.ARCHIVE.read_bytes()
    demo.pack_demo(packed)
    assert demo.ARCHIVE.read_bytes() == first
    assert f"({len(first):,} bytes)" in capsys.readouterr().out


def test_the_demo_becomes_version_1_and_is_live(tmp_path: Path) -> None:
    root = tmp_path / "new" / "models"
    assert demo.install_demo(root)
    versions = Store(root).model(demo.MODEL)
    assert (versions.versions(), versions.live()) == ([1], 1)
    assert [path.name for path in root.iterdir()] == [demo.MODEL]
    assert not demo.install_demo(root), "the second time, the model is there"


def test_the_demo_never_replaces_a_model(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.publish(demo.MODEL, small_contents(), onnx=False)
    versions = store.model(demo.MODEL)
    snapshot = versions.manifest(1).snapshot
    assert not demo.install_demo(tmp_path)
    assert (versions.versions(), versions.live(), versions.manifest(1).snapshot) == ([1], None, snapshot)


def test_a_first_version_that_is_being_published_is_left_alone(tmp_path: Path) -> None:
    publishing = tmp_path / demo.MODEL / ".publishing-0123"
    publishing.mkdir(parents=True)
    assert not demo.install_demo(tmp_path)
    assert list((tmp_path / demo.MODEL).iterdir()) == [publishing]
    assert [path.name for path in tmp_path.iterdir()] == [demo.MODEL]


def test_of_processes_that_install_at_the_same_time_one_succeeds(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(demo.install_demo, [tmp_path] * 4))
    assert results.count(True) == 1
    assert Store(tmp_path).model(demo.MODEL).live() == 1
    assert [path.name for path in tmp_path.iterdir()] == [demo.MODEL]


def test_a_damaged_archive_leaves_the_store_as_it_was(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = packed / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    monkeypatch.setattr(demo, "ARCHIVE", tmp_path / "damaged.zip")
    demo.pack_demo(packed)
    root = tmp_path / "models"
    with pytest.raises(SnapshotError, match=r"weights\.safetensors"):
        demo.install_demo(root)
    assert list(root.iterdir()) == []


def test_the_command_installs_the_demo_only_into_a_store_without_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SGF_STORE", str(tmp_path))
    Store(tmp_path).publish("mine", small_contents(), onnx=False)
    assert main(["demo"]) == 0
    assert capsys.readouterr().out == "the store has mine: the demo is not installed\n"
    monkeypatch.setenv("SGF_STORE", str(tmp_path / "empty"))
    assert main(["demo"]) == 0
    assert capsys.readouterr().out == "installed the demo as version 1 of digits\n"
    assert main(["demo"]) == 0
    assert "the store has digits" in capsys.readouterr().out
