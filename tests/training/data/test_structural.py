"""Graphs without features: `--structural degree` makes them, and new nodes send theirs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store import DataError, Store
from model_store.structural import structural_features
from sgformer import NewNodes
from tests.training.samples import user_arrays, write_folder
from training.__main__ import main
from training.data.tables.reading import Reading
from training.data.user_data import read_user_data

NO_FEATURES: dict[str, Any] = {"height": None, "width": None}
DEGREE = Reading(structural="degree")


def featureless(tmp_path: Path, kind: str) -> Path:
    if kind == "csv":
        return write_folder(tmp_path / "plain", kind, nodes=NO_FEATURES)
    np.savez(tmp_path / "plain.npz", **user_arrays(x=None))
    return tmp_path / "plain.npz"


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_features_are_made_of_the_number_of_neighbours(tmp_path: Path, kind: str) -> None:
    data = read_user_data(featureless(tmp_path, kind), reading=DEGREE)
    degrees = data.graph.adjacency.all_degrees()
    np.testing.assert_allclose(np.asarray(data.graph.features)[:, 0], np.log2(1 + degrees), rtol=1e-6)
    assert data.feature_names == ("log2_degree",)
    assert data.reading == {"structural": "degree"}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("csv", "plain has no features: no column besides those of the id, the label and the split"),
        ("npz", "plain.npz has no features: neither x nor x_data, x_indices, x_indptr, x_shape"),
    ],
)
def test_a_graph_without_features_needs_the_choice(tmp_path: Path, kind: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        read_user_data(featureless(tmp_path, kind))
    assert str(caught.value) == f"{message}; --structural degree makes a feature of the number of neighbours"


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_features_are_never_replaced(tmp_path: Path, kind: str) -> None:
    np.savez(tmp_path / "full.npz", **user_arrays())
    path = tmp_path / "full.npz" if kind == "npz" else write_folder(tmp_path / "full", kind)
    with pytest.raises(DataError) as caught:
        read_user_data(path, reading=DEGREE)
    assert str(caught.value) == f"{path.name} has features: features of the structure are for graphs without features"


def test_the_number_of_nodes_must_be_known(tmp_path: Path) -> None:
    np.savez(tmp_path / "plain.npz", **user_arrays(x=None, y=None))
    with pytest.raises(DataError) as caught:
        read_user_data(tmp_path / "plain.npz", reading=DEGREE)
    assert str(caught.value) == "plain.npz has neither x, nor node_ids or y: the number of its nodes is not known"


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_a_new_node_is_answered_exactly_with_the_feature_of_its_neighbours(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = featureless(tmp_path, kind)
    where = ["--store", str(tmp_path / "models"), "--json", "--activate"]
    command = ["--data", str(path), *where]
    assert main([*command, "--structural", "degree", "--epochs", "2", "--hidden", "4", "--no-checkpoint"]) == 0
    assert main(["check", str(path), "--structural", "degree"]) == 0
    assert "log2_degree" in capsys.readouterr().out
    assert main(["refresh", *command]) == 0  # the choice is that of the live version
    assert json.loads(capsys.readouterr().out)["version"] == 2
    neighbors = [1, 2, 5]
    features = np.log2([[1 + len(neighbors)]])
    with Store(tmp_path / "models").model("plain").open() as snapshot:
        assert snapshot.manifest.features is not None
        assert snapshot.manifest.features.position_names == ["log2_degree"]
        new = NewNodes.build(features, [neighbors], num_nodes=20, num_features=1)
        answer = snapshot.extended(new)
        assert answer.exactness == "exact"
        graph = read_user_data(path, reading=DEGREE).graph
        grown = graph.with_nodes(features.astype(np.float32), [[20] * 3, neighbors])
        # The known nodes keep the features of the training, the new node has those of the grown graph.
        np.testing.assert_allclose(structural_features(grown.adjacency)[20], features[0], rtol=1e-6)
        from sgformer import full_logits

        expected = full_logits(snapshot.manifest.config, snapshot.weights, grown)[20]
        np.testing.assert_allclose(answer.logits[0], expected, atol=1e-5)
