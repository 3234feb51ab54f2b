"""The embeddings of all nodes in a snapshot, and the map of them."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store import Snapshot, SnapshotError, Store
from model_store.format.manifest import Manifest
from model_store.publish.embedding_files import main_components
from sgformer.nearest.lists import measured_queries
from tests.model_store.format.abuse import drop_embeddings, forge, refused, unchanged
from tests.model_store.samples import NODES, publish, small_contents


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    publish(Store(root))
    return root / "demo" / "1"


def test_rows_are_the_embeddings_divided_by_their_lengths(folder: Path) -> None:
    with Snapshot.open(folder) as snapshot:
        embeddings = snapshot.known(np.arange(NODES)).embeddings
        expected = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
        np.testing.assert_allclose(snapshot.unit_embeddings, expected, atol=1e-6)


def test_the_map_shows_the_two_main_components(folder: Path) -> None:
    """Against a singular value decomposition of all embeddings."""
    with Snapshot.open(folder) as snapshot:
        embeddings = snapshot.known(np.arange(NODES)).embeddings.astype(np.float64)
        drawn = snapshot.manifest.embeddings["map"]
        places = np.asarray(snapshot.map)
    mean, components = np.array(drawn["mean"]), np.array(drawn["components"])
    np.testing.assert_allclose(mean, embeddings.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(places, (embeddings - mean) @ components.T, atol=1e-5)
    _, values, vectors = np.linalg.svd(embeddings - mean, full_matrices=False)
    np.testing.assert_allclose(np.abs((vectors[:2] * components).sum(axis=1)), 1, atol=1e-6)
    np.testing.assert_allclose(drawn["explained"], (values**2 / (values**2).sum())[:2], atol=1e-6)
    assert drawn["method"] == "pca"


@pytest.mark.parametrize("config", [{"hidden": 1}, {"combine": "cat"}, {"alpha": 0.0}])
def test_every_model_has_a_map(tmp_path: Path, config: dict[str, Any]) -> None:
    Store(tmp_path).publish("demo", small_contents(config=config), onnx=False, states="float16")
    with Snapshot.open(tmp_path / "demo" / "1") as snapshot:
        assert snapshot.unit_embeddings is not None
        assert snapshot.unit_embeddings.shape == (NODES, snapshot.manifest.config.embedding_size)
        assert np.isfinite(np.asarray(snapshot.map)).all()


def test_equal_embeddings_have_a_map_of_one_point() -> None:
    components, explained = main_components(np.zeros((3, 3)))
    assert (components == 0).all()
    assert explained == [0, 0]


def test_a_manifest_that_disagrees_with_its_files_is_refused(folder: Path) -> None:
    content = json.loads((folder / "manifest.json").read_text())
    for change in (
        {"embeddings": None},
        {"embeddings": {}},
        {"embeddings": {"map": content["embeddings"]["map"] | {"mean": [0.0]}, "index": None}},
        {"embeddings": {"map": content["embeddings"]["map"] | {"components": [0.0, [1]]}, "index": None}},
        {"files": {name: entry for name, entry in content["files"].items() if name != "states/map.npy"}},
    ):
        with pytest.raises(SnapshotError, match="embeddings"):
            Manifest.from_json(_rehashed(content | change))


def _rehashed(content: dict[str, Any]) -> bytes:
    content = {name: value for name, value in content.items() if name != "snapshot"}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return json.dumps(content | {"snapshot": hashlib.sha256(canonical.encode()).hexdigest()}).encode()


def test_a_snapshot_of_an_earlier_format_has_none(folder: Path, tmp_path: Path) -> None:
    old = Path(shutil.copytree(folder, tmp_path / "demo" / "1"))

    def make_format_3(content: dict[str, Any]) -> None:
        drop_embeddings(old, content)
        del content["embeddings"]
        content["format"] = 3

    forge(old, make_format_3)
    with Snapshot.open(old) as snapshot:
        assert snapshot.unit_embeddings is snapshot.map is snapshot.manifest.embeddings is None
        assert Manifest.from_json(snapshot.manifest.to_json()) == snapshot.manifest


@pytest.fixture
def indexed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("model_store.publish.embedding_files.INDEX_FROM_NODES", 10)
    monkeypatch.setattr("sgformer.nearest.lists.PROBES", (7,))
    store = Store(tmp_path / "indexed")
    for _ in range(2):
        publish(store)
    return tmp_path / "indexed" / "demo" / "1"


def test_a_large_graph_has_an_index_with_its_recall(indexed: Path) -> None:
    with Snapshot.open(indexed) as snapshot:
        index, lists = snapshot.manifest.embeddings["index"], snapshot.similar_lists
        assert lists is not None
        rows = snapshot.unit_embeddings
        recall = lists.measure(rows, len(lists.centroids) - 1, *measured_queries(rows))
        assert index == {"lists": len(lists.centroids), "probes": len(lists.centroids) - 1, "recall": recall}
        assert index["recall"] >= 0.995
        assert {name for name in snapshot.manifest.files if "similar" in name} == {
            f"states/similar_{name}.npy" for name in ("centroids", "starts", "rows")
        }


@pytest.mark.parametrize(
    ("name", "place", "value", "reason"),
    [
        ("rows", 3, 60, "outside 0 to 59"),
        ("rows", 3, -1, "outside 0 to 59"),
        ("starts", 0, 1, "does not rise"),
        ("starts", 2, 61, "does not rise"),
    ],
)
def test_a_forged_index_is_refused(indexed: Path, name: str, place: int, value: int, reason: str) -> None:
    path = indexed / "states" / f"similar_{name}.npy"
    array = np.load(path)
    array[place] = value
    np.save(path, array)
    forge(indexed, unchanged)
    refused(indexed, f"states/similar_{name}.npy", reason)


def test_a_row_that_is_listed_twice_is_refused(indexed: Path) -> None:
    path = indexed / "states" / "similar_rows.npy"
    array = np.load(path)
    array[3] = array[4]
    np.save(path, array)
    forge(indexed, unchanged)
    refused(indexed, "states/similar_rows.npy", "does not have row")


@pytest.mark.parametrize("change", [{"probes": 0}, {"lists": 3}, {"recall": 2.0}, {"recall": "1"}, {"more": 1}])
def test_an_index_that_cannot_be_is_refused(indexed: Path, change: dict[str, Any]) -> None:
    forge(indexed, lambda content: content["embeddings"]["index"].update(change))
    refused(indexed, "manifest.json", "embeddings index")
