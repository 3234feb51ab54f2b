"""Importing models that other programs have trained."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from model_store import DataError, Store
from model_store.__main__ import main
from model_store.publish.graph_file import read_graph_file
from sgformer import NewNodes, SparseRows, probabilities

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of the example: the weights of PyG's SGFormer, its graph and its answers."""
    folder = tmp_path_factory.mktemp("pyg")
    command = [sys.executable, "-W", "error", "-W", "ignore:`torch.jit.script`", str(ROOT / "examples/import_from_pyg.py")]
    result = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=True)
    assert "PyG's model is right for 9" in result.stdout
    return folder


def test_an_imported_model_answers_as_pyg_does(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--weights", f"{trained}/weights.safetensors", "--graph", f"{trained}/graph.npz"]
    arguments = ["import", "--layout", "pyg", *files]
    assert main(["--store", str(tmp_path), "--model", "digits", *arguments, "--activate"]) == 0
    assert capsys.readouterr().out == "published digits 1, 1,797 nodes, live\n"
    theirs = np.load(trained / "answers.npy")
    with Store(tmp_path).model("digits").open() as snapshot:
        logits = snapshot.known(np.arange(len(theirs))).logits
        np.testing.assert_allclose(np.log(probabilities(logits, "multiclass")), theirs, atol=1e-4)
        assert snapshot.manifest.classes == tuple("0123456789")
        assert snapshot.manifest.onnx is not None
        with np.load(trained / "graph.npz") as file:
            np.testing.assert_array_equal(snapshot.labels, file["y"])
            np.testing.assert_array_equal(snapshot.split, file["split"])
        pixels = read_graph_file(trained / "graph.npz").graph.features
        again = NewNodes.build(pixels[:1], [[1, 2]], num_nodes=len(theirs), num_features=64)
        assert snapshot.extended(again).exactness == "exact"


def edited(source: Path, target: Path, **changes: Any) -> Path:
    with np.load(source) as file:
        arrays = {name: file[name] for name in file.files} | changes
    np.savez(target, **{name: array for name, array in arrays.items() if array is not None})
    return target


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"edge_index": None}, "graph.npz has no array edge_index; it has "),
        ({"x": None}, "has no features: neither x nor x_data, x_indices, x_indptr, x_shape"),
        ({"x_data": np.ones(1)}, "it has x, x_data"),
        ({"x": np.full((1797, 64), np.nan)}, "graph.npz: "),
        ({"edge_index": np.array([[0], [1797]])}, "edge 0 is 0 - 1797, expected node ids from 0 to 1796"),
        ({"node_ids": np.array(["a", "a"])}, "rows 0 and 1 have the same id 'a'"),
        ({"node_ids": np.array(["a", "b"])}, "2 node_ids for 1797 nodes"),
        ({"node_ids": np.ones(1797)}, "node_ids hold float64"),
        ({"class_names": np.arange(10)}, "class_names are int64"),
        ({"x": np.ones((1797, 3))}, "the model reads 64 features, the graph has 3"),
        ({"edge_weight": np.full(9, 0.5)}, "graph.npz: edge_weight has values of edges, which this model does not use"),
        ({"edge_attr": np.ones((9, 2)) * 3}, "remove edge_attr to use the edges alone"),
        ({"y": np.arange(5)}, "graph.npz: y has shape (5,), expected labels of 1797 nodes for multiclass"),
        ({"y": np.full(1797, 0.5)}, "graph.npz: y holds float64, expected classes 0, 1, 2 ... and -1 for unlabelled nodes"),
        ({"split": np.full(1797, 3)}, "split is int64 (1797,), expected 1797 of 0 (train), 1 (val), 2 (test), -1"),
    ],
)
def test_a_graph_that_cannot_be_imported(trained: Path, tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    from model_store.publish.foreign_model import import_contents

    graph = edited(trained / "graph.npz", tmp_path / "graph.npz", **changes)
    with pytest.raises(DataError) as caught:
        import_contents("pyg", trained / "weights.safetensors", graph, {})
    assert reason in str(caught.value)


@pytest.mark.parametrize(("labels", "stored"), [(None, False), (np.zeros(1797, dtype=np.int64), True)])
def test_labels_of_an_imported_graph_are_optional_and_may_be_of_one_class(
    trained: Path, tmp_path: Path, labels: Any, stored: bool
) -> None:
    graph = edited(trained / "graph.npz", tmp_path / "graph.npz", y=labels, split=None)
    command = ["import", "--layout", "pyg", "--weights", f"{trained}/weights.safetensors", "--graph", str(graph)]
    assert main(["--store", str(tmp_path / "models"), *command, "--no-onnx"]) == 0
    with Store(tmp_path / "models").model("imported").open(1) as snapshot:
        assert (snapshot.labels is not None) == stored
        assert snapshot.split is None


def test_weights_that_were_trained_on_directed_edges_are_refused(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with np.load(trained / "graph.npz") as file:
        both_ways = file["edge_index"]
    one_way = both_ways[:, both_ways[0] < both_ways[1]]
    graph = edited(
        trained / "graph.npz",
        tmp_path / "graph.npz",
        edge_index=np.concatenate([one_way, one_way[:, :3]], axis=1),
        edge_weight=np.ones(7),
    )
    command = ["--store", str(tmp_path), "import", "--layout", "pyg", "--no-onnx", "--graph", str(graph)]
    command += ["--weights", f"{trained}/weights.safetensors"]
    assert main(command) == 1
    edges = one_way.shape[1]
    assert capsys.readouterr().err == (
        f"sgf-models: the edge list has {edges + 3:,} entries ({edges:,} in one direction only, 3 repeated), but the served "
        "graph is undirected and has each edge once. If the weights were trained on these edges as they are, served answers "
        "differ from those of the original library. If they were trained on the undirected graph, or the difference is "
        "acceptable, say so with --undirected\n"
    )
    assert main([*command, "--undirected"]) == 0
    counts = {"entries": edges + 3, "one_way": edges, "repeated": 3, "self_loops": 0}
    assert Store(tmp_path).model("imported").manifest(1).dataset["given_edges"] == counts


def test_object_arrays_are_not_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "graph.npz", x=np.array([{}], dtype=object), edge_index=np.zeros((2, 1)))
    with pytest.raises(DataError, match=r"^graph.npz: x holds Python objects, which are pickles and never loaded"):
        read_graph_file(tmp_path / "graph.npz")
    with pytest.raises(DataError, match="there is no file"):
        read_graph_file(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(DataError, match=r"text.npz is not an npz file"):
        read_graph_file(tmp_path / "text.npz")
    (tmp_path / "empty.npz").touch()
    with pytest.raises(DataError, match=r"empty.npz is not an npz file"):
        read_graph_file(tmp_path / "empty.npz")
    np.save(tmp_path / "one.npy", np.ones(3))
    with pytest.raises(DataError, match="holds a single array"):
        read_graph_file(tmp_path / "one.npy")


def test_sparse_features_come_as_csr_parts(tmp_path: Path) -> None:
    parts = {"x_data": [1.0, 2.0], "x_indices": [0, 2], "x_indptr": [0, 1, 2], "x_shape": [2, 3]}
    arrays = {name: np.array(part) for name, part in parts.items()} | {"edge_index": np.array([[0], [1]])}
    np.savez(tmp_path / "graph.npz", **arrays)
    features = read_graph_file(tmp_path / "graph.npz").graph.features
    assert isinstance(features, SparseRows)
    assert features.toarray().tolist() == [[1, 0, 0], [0, 0, 2]]
    np.savez(tmp_path / "bad.npz", **arrays | {"x_shape": np.array([5, 3])})
    with pytest.raises(DataError, match=r"x_shape says 5 rows, x_indptr has shape \(3,\)"):
        read_graph_file(tmp_path / "bad.npz")


@pytest.mark.parametrize("shape", [[2, -4], [2, 10**18], [2.0, 3.0], ["2", "3"], [2], 2, [np.nan, 3]])
def test_impossible_shapes_of_sparse_features(tmp_path: Path, shape: Any) -> None:
    arrays = {"x_data": np.ones(2), "x_indices": np.array([0, 2]), "x_indptr": np.array([0, 1, 2])}
    np.savez(tmp_path / "graph.npz", x_shape=np.array(shape), edge_index=np.array([[0], [1]]), **arrays)
    with pytest.raises(DataError, match="expected the numbers of rows and columns"):
        read_graph_file(tmp_path / "graph.npz")


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_npz_never_crashes_the_reader(trained: Path, tmp_path: Path, seed: int) -> None:
    with np.load(trained / "graph.npz") as file:
        np.savez_compressed(tmp_path / "graph.npz", x=file["x"][:50], edge_index=np.array([[0], [1]]))
    data = bytearray((tmp_path / "graph.npz").read_bytes())
    for place in np.random.default_rng(seed).integers(0, len(data), 20):
        data[place] ^= 0xFF
    (tmp_path / "graph.npz").write_bytes(data)
    with suppress(DataError):
        read_graph_file(tmp_path / "graph.npz")


@pytest.mark.parametrize(
    ("switches", "reason"),
    [
        ({"use_bn": "true"}, "there is no setting 'use_bn', expected one of graph_weight, task"),
        ({"graph_weight": "much"}, "graph_weight is 'much', expected a number"),
        ({"graph_weight": "2"}, "alpha must lie in"),
    ],
)
def test_settings_that_the_layout_does_not_have(trained: Path, switches: dict[str, str], reason: str) -> None:
    from model_store.publish.foreign_model import import_contents

    with pytest.raises(DataError) as caught:
        import_contents("pyg", trained / "weights.safetensors", trained / "graph.npz", switches)
    assert reason in str(caught.value)


def test_wrong_weights_are_reported(trained: Path, tmp_path: Path) -> None:
    from model_store.publish.foreign_model import import_contents

    weights = load_file(trained / "weights.safetensors")
    weights["surprise"] = np.zeros(1, dtype=np.float32)
    save_file(weights, tmp_path / "weights.safetensors")
    for path, reason in (
        (tmp_path / "weights.safetensors", r"with layout pyg: unknown tensor\(s\): surprise"),
        (trained / "graph.npz", "not a safetensors file"),
        (tmp_path / "none.safetensors", "No such file"),
        (tmp_path / "model.pt", "may be a pickle, which could run code; save the state dict with safetensors"),
    ):
        with pytest.raises(DataError, match=reason):
            import_contents("pyg", path, trained / "graph.npz", {})
