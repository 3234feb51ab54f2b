"""Graphs without features: `--structural` makes them from the edges, also those of new nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store import DataError, NodeIds, Store
from model_store.run_settings import Structural
from model_store.structural import StructuralFeatures, values_of_neighbors
from sgformer import NewNodes, full_logits
from tests.training.samples import user_arrays, write_folder
from training.__main__ import main
from training.data.tables.reading import Reading
from training.data.user_data import read_user_data

NO_FEATURES: dict[str, Any] = {"height": None, "width": None}
DEGREE = Reading(structural="degree")
PINNED = [np.log2(3), *(np.sqrt(2) * np.array([-1, 1, 1, -1, 0, 1, 0, 1]))]


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
    hint = "--structural degree makes a feature of the number of neighbours, --structural random also of which they are"
    assert str(caught.value) == f"{message}; {hint}"


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
def test_random_features_tell_which_the_neighbours_are(tmp_path: Path, kind: str) -> None:
    data = read_user_data(featureless(tmp_path, kind), reading=Reading(structural="random"))
    features, adjacency = np.asarray(data.graph.features), data.graph.adjacency
    for row in range(adjacency.num_nodes):
        neighbors = adjacency.neighbors(np.array([row])).tolist()
        values = values_of_neighbors("random", data.node_ids.names(neighbors) if data.node_ids else neighbors)
        assert tuple(values) == data.feature_names
        np.testing.assert_array_equal(features[row], np.array(list(values.values()), dtype=np.float32))
    assert np.abs(features[:, 1:]).max() > 0.5


def test_random_features_are_the_same_on_every_machine() -> None:
    values = list(values_of_neighbors("random", ["ann", 7]).values())
    assert values[:9] == pytest.approx(PINNED)
    assert values_of_neighbors("random", [])["neighbors_0"] == 0
    texts = values_of_neighbors("random", ["7", "ann"])
    assert list(texts.values()) == values, "the order of neighbours and the type of an id do not matter"


def test_random_features_of_nodes_without_common_neighbours_are_unrelated() -> None:
    left, right, both = (
        np.array(list(values_of_neighbors("random", neighbors).values())[1:])
        for neighbors in (range(50), range(50, 100), range(25, 75))
    )
    assert abs(np.corrcoef(left, right)[0, 1]) < 0.4
    assert np.corrcoef(left, both)[0, 1] > 0.2
    assert np.var(left) == pytest.approx(1, abs=0.5)


@pytest.mark.parametrize("structural", ["degree", "random"])
@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_a_new_node_is_answered_exactly_with_the_features_of_its_neighbours(
    tmp_path: Path, kind: str, structural: Structural, capsys: pytest.CaptureFixture[str]
) -> None:
    path = featureless(tmp_path, kind)
    where = ["--store", str(tmp_path / "models"), "--json", "--activate"]
    command = ["--data", str(path), *where]
    assert main([*command, "--structural", structural, "--epochs", "2", "--hidden", "4", "--no-checkpoint"]) == 0
    assert main(["check", str(path), "--structural", structural]) == 0
    assert {"degree": "log2_degree", "random": "features    65"}[structural] in capsys.readouterr().out
    assert main(["refresh", *command]) == 0  # the choice is that of the live version
    assert json.loads(capsys.readouterr().out)["version"] == 2
    neighbors = [1, 2, 5]
    data = read_user_data(path, reading=Reading(structural=structural))
    ids = neighbors if data.node_ids is None else data.node_ids.names(neighbors)
    values = values_of_neighbors(structural, ids)
    features = np.array([list(values.values())])
    with Store(tmp_path / "models").model("plain").open() as snapshot:
        assert snapshot.manifest.features is not None
        assert snapshot.manifest.features.position_names == list(values)
        new = NewNodes.build(features, [neighbors], num_nodes=20, num_features=len(values))
        answer = snapshot.extended(new)
        assert answer.exactness == "exact"
        grown = data.graph.with_nodes(features.astype(np.float32), [[20] * 3, neighbors])
        # The known nodes keep the features of the training, the new node has those of the grown graph.
        ids_after = NodeIds.build([*(range(21) if data.node_ids is None else [*data.node_ids.names(range(20)), "new"])])
        np.testing.assert_allclose(
            StructuralFeatures(structural, grown.adjacency, ids_after)[20:][0], features[0], rtol=1e-6
        )
        expected = full_logits(snapshot.manifest.config, snapshot.weights, grown)[20]
        np.testing.assert_allclose(answer.logits[0], expected, atol=1e-5)
