"""Features, labels and split in a snapshot: stored as training saw them, checked, mapped, and optional."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store import DataError, FeatureColumn, FeatureSchema, ModelVersions, Store, StoreError
from sgformer import Graph, SparseRows, UnknownNodeError
from tests.model_store.format.abuse import drop_embeddings, forge, refused, unchanged
from tests.model_store.samples import CLASSES, FEATURES, NODES, publish, small_contents, small_graph, small_labels

SCHEMA = FeatureSchema((*(FeatureColumn(name, "number") for name in "abc"), FeatureColumn("d", "category", ("e", "f"))))


def sparse_graph(seed: int = 0) -> tuple[Graph, np.ndarray]:
    """A graph with sparse features whose columns descend within each row, and the features as a dense array."""
    dense = np.asarray(small_graph(seed).features) * (np.random.default_rng(seed).random((NODES, FEATURES)) < 0.4)
    rows, columns = np.nonzero(dense)
    order = np.lexsort((-columns, rows))
    indptr = np.searchsorted(rows, np.arange(NODES + 1))
    sparse = SparseRows(indptr, columns[order], dense[rows, columns[order]].astype(np.float64), FEATURES)
    return Graph(sparse, small_graph(seed).adjacency), dense


def test_dense_features_labels_and_split_are_as_published(versions: ModelVersions) -> None:
    with versions.open(1) as snapshot:
        features = snapshot.raw_features()
        assert isinstance(features, np.ndarray)
        assert (features.dtype, features.flags.writeable) == (np.float32, False)
        np.testing.assert_array_equal(features, small_graph(1).features)
        np.testing.assert_array_equal(snapshot.raw_features(np.array([59, 0, 59])), small_graph(1).features[[59, 0, 59]])
        for name, expected in small_labels().items():
            np.testing.assert_array_equal(getattr(snapshot, name), expected)
        with pytest.raises(UnknownNodeError, match="node 60 is not in the graph"):
            snapshot.raw_features(np.array([60]))


def test_sparse_features_stay_sparse_with_ascending_columns(store: Store) -> None:
    graph, dense = sparse_graph()
    store.publish("demo", small_contents(0, graph), onnx=False)
    assert store.model("demo").manifest(1).sizes.feature_entries == np.count_nonzero(dense)
    with store.model("demo").open(1) as snapshot:
        everything, some = snapshot.raw_features(), snapshot.raw_features(np.array([5, 3, 5]))
        assert isinstance(everything, SparseRows)
        assert isinstance(some, SparseRows)
        assert (everything.dtype, everything.indices.dtype) == (np.float32, np.int32)
        np.testing.assert_array_equal(everything.toarray(), dense)
        np.testing.assert_array_equal(some.toarray(), dense[[5, 3, 5]])
        assert all((np.diff(everything[row : row + 1].indices) > 0).all() for row in range(NODES))
        assert (snapshot.labels, snapshot.split) == (None, None)


@pytest.mark.parametrize("graph", [small_graph(), sparse_graph()[0]])
def test_raw_data_can_be_left_out(store: Store, graph: Graph) -> None:
    contents = small_contents(0, graph, **small_labels())
    store.publish("demo", contents, onnx=False, raw_data=False)
    with store.model("demo").open(1) as snapshot:
        assert (snapshot.raw_features(), snapshot.raw_features(np.array([0]))) == (None, None)
        assert (snapshot.labels, snapshot.split) == (None, None)
    assert not list((store.root / "demo" / "1" / "graph").glob("features*"))


@pytest.mark.parametrize(
    ("task", "labels", "shape"),
    [
        ("multiclass", np.zeros((NODES, 1), dtype=np.uint8), (NODES,)),
        ("multilabel", np.full((NODES, CLASSES), np.nan), (NODES, CLASSES)),
        ("regression", np.full((NODES, CLASSES), 1.5), (NODES, CLASSES)),
    ],
)
def test_labels_have_the_form_of_the_task(store: Store, task: str, labels: np.ndarray, shape: tuple[int, ...]) -> None:
    store.publish("demo", small_contents(0, config={"task": task}, labels=labels), onnx=False)
    with store.model("demo").open(1) as snapshot:
        assert snapshot.labels is not None
        assert (snapshot.labels.shape, snapshot.labels.dtype.str) == (shape, "<i8" if task == "multiclass" else "<f4")
        np.testing.assert_array_equal(snapshot.labels, labels.reshape(shape))


@pytest.mark.parametrize(
    ("task", "changes", "reason"),
    [
        ("multiclass", {"labels": np.full(NODES, CLASSES)}, "the label of node 0 is 3, expected -1 to 2"),
        ("multiclass", {"labels": np.zeros(NODES)}, r"labels are float64 \(60,\), a multiclass model needs whole numbers"),
        ("multiclass", {"labels": np.zeros(9, dtype=int)}, r"labels are int64 \(9,\)"),
        ("multilabel", {"labels": np.full((NODES, CLASSES), 2.0)}, "the label of node 0 is 2.0, expected 0, 1 or NaN"),
        ("multilabel", {"labels": np.zeros(NODES)}, r"a multilabel model needs numbers \(60, 3\)"),
        ("regression", {"labels": np.full((NODES, CLASSES), np.inf)}, "is inf, expected a finite number or NaN"),
        ("multiclass", {"split": np.full(NODES, 3)}, r"the split has shape \(60,\), expected \(60,\) of -1, 0, 1 and 2"),
        ("multiclass", {"split": np.zeros(3, dtype=int)}, r"the split has shape \(3,\)"),
        ("multiclass", {"features": FeatureSchema(SCHEMA.columns[:3])}, "named features of width 3, the model reads 5"),
        ("multiclass", {"reading": {"x": {1}}}, "reading cannot be written as JSON"),
    ],
)
def test_raw_data_that_does_not_fit_the_model_is_refused(store: Store, task: str, changes: Any, reason: str) -> None:
    with pytest.raises(StoreError, match=reason) as caught:
        store.publish("demo", small_contents(0, config={"task": task}, **changes), onnx=False)
    assert isinstance(caught.value, DataError) or "labels" not in changes
    assert store.models() == []


@pytest.mark.parametrize(
    ("file", "place", "value", "reason"),
    [
        ("graph/features_indices.npy", 3, FEATURES, "holds an index outside 0 to 4"),
        ("graph/features_indices.npy", 3, -1, "holds an index outside 0 to 4"),
        ("graph/features_indices.npy", slice(0, 40), 2, "has a list that is not in ascending order"),
        ("graph/features_indptr.npy", -1, 7, "runs from 0 to 7"),
        ("graph/features_indptr.npy", 30, 0, "decreases"),
    ],
)
def test_forged_sparse_features(store: Store, file: str, place: Any, value: int, reason: str) -> None:
    store.publish("demo", small_contents(0, sparse_graph()[0]), onnx=False)
    publish(store)
    folder = store.root / "demo" / "1"
    array = np.load(folder / file)
    array[place] = value
    np.save(folder / file, array)
    forge(folder, unchanged)
    refused(folder, file, reason)


@pytest.mark.parametrize(
    ("file", "array", "reason"),
    [
        ("features", np.zeros((NODES, FEATURES)), "holds <f8, expected <f4"),
        ("features", np.zeros((NODES, 4), dtype=np.float32), r"has shape \(60, 4\), expected \(60, 5\)"),
        ("labels", np.zeros(NODES, dtype=np.float32), "holds <f4, expected <i8"),
        ("split", np.zeros(NODES, dtype=np.int64), r"holds <i8, expected \|i1"),
    ],
)
def test_raw_data_of_another_kind(folder: Path, file: str, array: np.ndarray, reason: str) -> None:
    np.save(folder / "graph" / f"{file}.npy", array)
    forge(folder, unchanged)
    refused(folder, f"graph/{file}.npy", reason, "sizes")


def test_opening_makes_no_page_of_the_features_resident(store: Store) -> None:
    graph = Graph(np.ones((2000, 2500), dtype=np.float32), small_graph(nodes=2000).adjacency)
    store.publish("demo", small_contents(0, graph, config={"in_features": 2500}), onnx=False)
    with store.model("demo").open(1) as snapshot:
        features = snapshot.folder / "graph" / "features.npy"
        before = resident_kilobytes(features)
        assert snapshot.raw_features(np.array([1000])) is not None
        assert before == 0
        assert 0 < resident_kilobytes(features) < 10_000, "of 20,000 kB"


def resident_kilobytes(file: Path) -> int:
    maps = Path("/proc/self/smaps").read_text()
    sizes = re.findall(rf"{re.escape(str(file))}$.*?^Rss:\s+(\d+) kB$", maps, re.DOTALL | re.MULTILINE)
    assert sizes, "the file is not mapped"
    return sum(map(int, sizes))


def test_the_manifest_has_the_names_of_features_the_reading_and_the_live_graph(store: Store) -> None:
    reading, live = {"columns": {"d": "category"}, "impute": "median"}, {"graph": "a1", "sequence": 12}
    store.publish("demo", small_contents(0, features=SCHEMA, reading=reading, live=live), onnx=False)
    manifest = store.model("demo").manifest(1)
    assert (manifest.features, manifest.reading, manifest.live) == (SCHEMA, reading, live)
    content = json.loads((store.root / "demo" / "1" / "manifest.json").read_text())
    assert (content["features"], content["reading"], content["live"]) == (SCHEMA.to_json(), reading, live)


def test_a_snapshot_of_the_previous_format_still_opens(folder: Path) -> None:
    def make_format_2(content: dict[str, Any]) -> None:
        content["format"] = 2
        drop_embeddings(folder, content)
        for key in ("features", "feature_entries", "reading", "live", "embeddings"):
            del content[key]
        for name in ("features", "labels", "split"):
            del content["files"][f"graph/{name}.npy"]
            (folder / "graph" / f"{name}.npy").unlink()

    forge(folder, make_format_2)
    versions, stated = ModelVersions(folder.parent), json.loads((folder / "manifest.json").read_text())
    with versions.open(1) as snapshot:
        manifest = snapshot.manifest
        assert (manifest.format, manifest.features, manifest.reading, manifest.live) == (2, None, None, None)
        assert (snapshot.raw_features(), snapshot.labels, snapshot.split) == (None, None, None)
        assert (snapshot.id, json.loads(manifest.to_json())) == (stated["snapshot"], stated)
        snapshot.replay()
    versions.activate(1)
