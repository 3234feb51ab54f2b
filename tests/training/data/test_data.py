"""Reading data sets from their raw files, and users' data."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store import DataError
from sgformer import SparseRows
from tests.training.samples import RNG, user_arrays, write_folder
from training.data import datasets
from training.data.labelled import TEST, TRAIN, UNUSED, VALIDATION
from training.data.user_data import read_user_data

STORED = ["cora", "actor", "squirrel", "chameleon", "minesweeper", "deezer", "debian", "pokec"]
OGB = ["ogbn-arxiv", "ogbn-proteins", "ogbn-products", "ogbn-papers100M"]


@pytest.mark.parametrize("name", [*STORED, *OGB, "digits", "synthetic"])
def test_every_data_set_is_read_from_its_raw_files(root: Path, name: str) -> None:
    data = datasets.load(name, split=1, root=root)
    for part in (TRAIN, VALIDATION, TEST):
        assert len(data.nodes(part)) > 0
    assert data.num_outputs >= 2
    assert len(data.labels) == data.graph.num_nodes
    assert len(data.sha256()) == 64


def test_sparse_features_stay_sparse(root: Path) -> None:
    for name in ("cora", "actor", "deezer"):
        assert isinstance(datasets.load(name, root=root).graph.features, SparseRows)
    assert datasets.load("deezer", root=root).graph.num_features == 500


def test_the_number_selects_the_split(root: Path) -> None:
    first, second, again = (datasets.load("actor", split, root=root) for split in (0, 1, 10))
    assert not np.array_equal(first.split, second.split)
    np.testing.assert_array_equal(first.split, again.split)
    assert first.sha256() == again.sha256() != second.sha256()
    public = datasets.load("cora", root=root)
    assert [len(public.nodes(part)) for part in (TRAIN, VALIDATION, TEST)] == [20, 500, 10]
    drawn = [datasets.load("cora-random", split, root=root).split for split in (0, 1)]
    assert not np.array_equal(drawn[0], drawn[1])


def test_ogb_has_its_tasks_metrics_and_missing_labels(root: Path) -> None:
    proteins = datasets.load("ogbn-proteins", root=root)
    assert (proteins.task, proteins.metric, proteins.num_outputs) == ("multilabel", "roc_auc", 5)
    assert proteins.graph.num_features == 8
    papers = datasets.load("ogbn-papers100M", root=root)
    assert (papers.labels[::5] == -1).all()
    assert papers.labels[1] == 1
    assert [len(papers.nodes(part)) for part in (TRAIN, VALIDATION, TEST)] == [12, 5, 7]
    assert (papers.split[::5] == UNUSED).all()


def test_pokec_has_user_ids_and_missing_labels(root: Path) -> None:
    data = datasets.load("pokec", root=root)
    assert data.labels[4] == -1
    assert data.split[4] == UNUSED
    assert data.node_ids is not None
    assert data.node_ids.rows([30]).tolist() == [29]
    assert data.class_names == ("female", "male")


def test_debian_has_package_names_as_ids(root: Path) -> None:
    ids = datasets.load("debian", root=root).node_ids
    assert ids is not None
    assert ids.rows(["package-7"]).tolist() == [7]


def test_a_generated_graph_has_communities_and_hubs() -> None:
    data = datasets.synthetic.generate(3000, 15000, classes=4)
    source, target = data.graph.adjacency.edge_index()
    assert (data.labels[source] == data.labels[target]).mean() > 0.6
    degrees = data.graph.adjacency.all_degrees()
    assert degrees.max() > 10 * np.median(degrees)


def test_an_npz_without_a_split_gets_a_random_one(tmp_path: Path) -> None:
    labels = np.arange(20) % 3
    labels[:4] = -1
    np.savez(tmp_path / "graph.npz", **user_arrays(y=labels, class_names=np.array(["a", "b", "c"])))
    data = read_user_data(tmp_path / "graph.npz", shares=(0.5, 0.25, 0.25), seed=1)
    assert sum(len(data.nodes(part)) for part in (TRAIN, VALIDATION, TEST)) == 16
    assert min(len(data.nodes(part)) for part in (TRAIN, VALIDATION)) >= 1
    assert data.drawn == "0.5/0.25/0.25, seed 1, by row"
    assert (data.split[:4] == UNUSED).all()
    assert data.class_names == ("a", "b", "c")


def test_an_npz_with_masks_or_a_split_keeps_them(tmp_path: Path) -> None:
    split = np.arange(20) % 3
    masks = {f"{name}_mask": split == part for part, name in enumerate(("train", "val", "test"))}
    np.savez(tmp_path / "masks.npz", **user_arrays(), **masks)
    np.savez(tmp_path / "split.npz", **user_arrays(split=split))
    for name in ("masks", "split"):
        np.testing.assert_array_equal(read_user_data(tmp_path / f"{name}.npz").split, split)


def test_the_task_is_derived_from_the_labels(tmp_path: Path) -> None:
    for labels, task, metric in (
        (np.arange(20) % 3, "multiclass", "accuracy"),
        ((RNG.random((20, 2)) < 0.5).astype(float), "multilabel", "roc_auc"),
        (RNG.random(20), "regression", "r2"),
    ):
        np.savez(tmp_path / "graph.npz", **user_arrays(y=labels))
        data = read_user_data(tmp_path / "graph.npz")
        assert (data.task, data.metric) == (task, metric)


@pytest.mark.parametrize(
    ("changes", "task", "reason"),
    [
        ({"y": None}, None, "has no array y"),
        ({"y": np.arange(19)}, None, "y has shape (19,), expected labels of 20 nodes"),
        ({"y": np.full(20, -2)}, None, "expected classes 0, 1, 2 ... and -1"),
        ({"y": np.full(20, -1)}, None, "no labelled training nodes"),
        ({"y": np.full((20, 2), 0.5)}, None, "y: row 0, column 0 is 0.5, expected 0, 1 or NaN"),
        ({"y": np.full(20, np.inf)}, None, "y: row 0 is infinite"),
        ({"y": np.array(["a"] * 20)}, None, "y holds <U1"),
        ({"y": RNG.random(20)}, "multiclass", "y holds float64, expected classes"),
        ({"y": np.zeros(20, dtype=int)}, None, "y has a single class, expected at least two"),
        ({"y": np.arange(20) * 10**11}, None, "which is more than there are nodes"),
        ({"class_names": np.array(["a"])}, None, "y has class 2, class_names has 1 names"),
        ({"split": np.full(20, 3)}, None, "split is int64 (20,), expected 20 of 0 (train)"),
        ({"train_mask": np.ones(20, dtype=bool)}, None, "expected all of train_mask, val_mask, test_mask"),
        (dict.fromkeys(("train_mask", "val_mask", "test_mask"), np.ones(20, dtype=bool)), None, "node 0 is in several"),
        (dict.fromkeys(("train_mask", "val_mask", "test_mask"), np.ones(20)), None, "train_mask is float64 (20,)"),
    ],
)
def test_a_wrong_npz_is_refused(tmp_path: Path, changes: dict[str, Any], task: Any, reason: str) -> None:
    np.savez(tmp_path / "graph.npz", **user_arrays(**changes))
    with pytest.raises(DataError) as caught:
        read_user_data(tmp_path / "graph.npz", task)
    assert reason in str(caught.value)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_folder_of_tables_is_a_graph(tmp_path: Path, kind: str) -> None:
    split = ["train", "val", "test", ""] * 5
    data = read_user_data(write_folder(tmp_path / "pets", kind, nodes={"split": split}))
    assert data.name == "pets"
    assert (data.graph.num_nodes, data.graph.num_edges, data.graph.num_features) == (20, 3, 2)
    assert data.class_names == ("blue", "red")
    assert data.labels[:2].tolist() == [1, 0]
    assert data.split[:4].tolist() == [TRAIN, VALIDATION, TEST, UNUSED]
    assert data.node_ids is not None
    assert data.graph.adjacency.neighbors(data.node_ids.rows(["n19"])).tolist() == [2]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("labels", "task", "expected", "names"),
    [
        ([20, 35, 60, None], "regression", [20, 35, 60, None], None),
        ([1.5, 2.0, 3.0, None], None, [1.5, 2.0, 3.0, None], None),
        ([0.0, 1.0, 10.0, None], None, [0, 1, 2, -1], ("0", "1", "10")),
        ([2, 10, 1, 2], None, [1, 2, 0, 1], ("1", "2", "10")),
        (["b", "a", None, "b"], None, [1, 0, -1, 1], ("a", "b")),
    ],
)
def test_labels_are_classes_or_values(
    tmp_path: Path, kind: str, labels: list[Any], task: Any, expected: list[Any], names: Any
) -> None:
    data = read_user_data(write_folder(tmp_path / "pets", kind, nodes={"label": labels * 5}), task)
    found = [None if value != value else value for value in data.labels[:4].tolist()]
    assert found == expected
    assert data.class_names == names


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_ids_keep_their_written_form(tmp_path: Path, kind: str) -> None:
    ids = [f"{number:03}" for number in range(20)]
    edges = {"source": ["001", "002", "003"], "target": ["004", "005", "006"]}
    data = read_user_data(write_folder(tmp_path / "a", kind, nodes={"id": ids}, edges=edges))
    assert data.node_ids is not None
    assert data.node_ids.rows(["007"]).tolist() == [7]
    numbers = {"source": [1, 2, 3], "target": [4, 5, 6]}
    data = read_user_data(write_folder(tmp_path / "b", kind, nodes={"id": list(range(20))}, edges=numbers))
    assert data.node_ids is not None
    assert data.node_ids.rows([7]).tolist() == [7]


def test_profile_texts_may_contain_quotes(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "pokec", tmp_path / "pokec")
    path = tmp_path / "pokec" / "soc-pokec-profiles.txt"
    path.parent.chmod(0o755)
    path.chmod(0o644)
    path.write_text(path.read_text().replace("region", '"unclosed', 3))
    assert datasets.load("pokec", root=tmp_path).graph.num_nodes == 30


def test_ids_beyond_64_bits_are_text(tmp_path: Path) -> None:
    largest, beyond = [str(2**63 - 1 - row) for row in range(20)], [str(2**63 + row) for row in range(20)]
    for ids, first in ((largest, 2**63 - 1), (beyond, str(2**63)), (["²", *largest[1:]], "²")):
        edges = {"source": ids[:3], "target": ids[3:6]}
        data = read_user_data(write_folder(tmp_path / str(first), "csv", nodes={"id": ids}, edges=edges))
        assert data.node_ids is not None
        assert data.node_ids.rows([first]).tolist() == [0]
