"""Forged snapshots with valid hashes and wrong content are refused; the error names the file.

wrong type, shape, order · a header that claims too much · a pickle for an array · files that the format does not know ·
a future format · another snapshot's files · NaN sums · invalid probes · indices outside the graph
"""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from model_store import ModelVersions, ProbeError, Snapshot
from tests.model_store.format.abuse import drop_embeddings, forge, refused, unchanged
from tests.model_store.samples import NODES


def test_a_forged_manifest_with_unchanged_content_is_accepted(folder: Path) -> None:
    """Without this, the tests below could pass because every forged manifest is refused."""
    forge(folder, unchanged)
    ModelVersions(folder.parent).open(1).close()


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros((NODES, 4)), "holds <f8, expected <f4"),
        (np.zeros((NODES, 4), dtype=">f4"), "holds >f4, expected <f4"),
        (np.zeros((NODES, 5), dtype=np.float32), r"has shape \(60, 5\), expected \(60, 4\)"),
        (np.zeros((NODES * 4,), dtype=np.float32), r"has shape \(240,\), expected \(60, 4\)"),
        (np.asfortranarray(np.zeros((NODES, 4), dtype=np.float32)), "is in Fortran order, expected C order"),
        (np.zeros((NODES, 4), dtype=[("a", "<f4")]), r"holds \|V4, expected <f4"),
    ],
)
def test_an_array_of_another_kind(folder: Path, array: np.ndarray, reason: str) -> None:
    np.save(folder / "states" / "layer_1.npy", array)
    forge(folder, unchanged)
    refused(folder, "states/layer_1.npy", reason)


def test_a_header_that_claims_more_than_there_is(folder: Path) -> None:
    """A file shorter than its shape, and a shape that is larger than any memory."""
    path = folder / "states" / "layer_1.npy"
    data = path.read_bytes()
    path.write_bytes(data[:-8])
    forge(folder, unchanged)
    refused(folder, "states/layer_1.npy", r"1,080 bytes long, expected 1,088 for \(60, 4\) <f4")
    path.write_bytes(data.replace(b"(60, 4), }            ", b"(60000000000000, 4), }"))
    forge(folder, unchanged)
    refused(folder, "states/layer_1.npy", r"has shape \(60000000000000, 4\), expected \(60, 4\)")
    path.write_bytes(data.replace(b"(60, 4), }", b"(60, 4, (("))
    forge(folder, unchanged)
    refused(folder, "states/layer_1.npy", "not an npy file")


def test_a_manifest_that_claims_a_huge_graph(folder: Path) -> None:
    forge(folder, lambda content: content.update(nodes=10**15))
    refused(folder, "states/inputs.npy", r"has shape \(60, 4\), expected \(1000000000000000, 4\)")


def test_a_manifest_that_claims_a_huge_model(folder: Path) -> None:
    def claim(content: dict[str, Any]) -> None:
        content["config"].update(hidden=10**9)
        drop_embeddings(folder, content)

    forge(folder, claim)
    refused(folder, "states/inputs.npy", r"has shape \(60, 4\), expected \(60, 1000000000\)")


def test_a_tensor_header_that_claims_too_much(folder: Path) -> None:
    header = json.dumps({"x": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}).encode()
    (folder / "weights.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    forge(folder, unchanged)
    refused(folder, "weights.safetensors", "not a safetensors file that can be read")


def test_a_pickle_in_place_of_an_array_runs_nothing(folder: Path, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "exploded",)

    for file in ("graph/indices.npy", "weights.safetensors"):
        original = (folder / file).read_bytes()
        (folder / file).write_bytes(pickle.dumps(Bomb()))
        forge(folder, unchanged)
        refused(folder, file, "not an npy file" if file.endswith("npy") else "not a safetensors file")
        np.save(folder / "graph" / "indices.npy", np.array([Bomb()], dtype=object), allow_pickle=True)
        if file.endswith("npy"):
            forge(folder, unchanged)
            refused(folder, file, r"holds \|O, expected <i4")
        (folder / file).write_bytes(original)
        (folder / "graph" / "indices.npy").write_bytes(original if file.endswith("npy") else b"")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("name", ["../evil.npy", "/etc/passwd", "states/../../2/manifest.json", "states/other.npy"])
def test_a_manifest_that_lists_a_file_the_format_does_not_know(folder: Path, name: str) -> None:
    forge(folder, lambda content: content["files"].update({name: {"size": 1, "sha256": "0" * 64}}))
    refused(folder, "manifest.json", "lists unknown files")


@pytest.mark.parametrize(
    ("tensor", "value", "reason"),
    [
        ("known.nodes", np.array([NODES]), "known.nodes must have at least one node, from 0 to 59"),
        ("known.nodes", np.array([-1]), "known.nodes must have at least one node"),
        ("known.nodes", np.array([], dtype=np.int64), "must have at least one node"),
        ("known.nodes", np.array(1), "known.nodes is int64 with 0 dimension"),
        ("known.nodes", np.array([1.0]), "known.nodes is float64 with 1 dimension"),
        ("hub.neighbors", np.array([np.inf]), "hub.neighbors is float64"),
        ("hub.neighbors", np.array([NODES]), "do not fit together|is not in the graph"),
        ("hub.counts", np.array([-1]), "do not fit together"),
        ("joint.edges", np.array([0, 1]), "joint.edges is int64 with 1 dimension"),
        ("joint.edges", np.array([[0, 1, 1]]), "do not fit together"),
        ("joint.features", np.ones((2, 3), dtype=np.float32), "features are 3 wide, expected 5"),
        ("hub.logits", np.full((1, 3), np.nan, dtype=np.float32), "expected .* and finite numbers"),
        ("surprise", np.zeros(1), "has unknown .*surprise"),
    ],
)
def test_invalid_probes(folder: Path, tensor: str, value: np.ndarray, reason: str) -> None:
    probes = load_file(folder / "probes.safetensors")
    probes[tensor] = value
    save_file(probes, folder / "probes.safetensors")
    forge(folder, unchanged)
    refused(folder, "probes.safetensors", reason)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 1}, "format is 1, this version reads the formats 2 to 4"),
        ({"format": 5}, "format is 5, this version reads the formats 2 to 4"),
        ({"format": None}, "format is None"),
        ({"format": 3}, "has unknown keys: 'embeddings'"),
        ({"format": 2}, "has unknown keys: 'embeddings', 'feature_entries', 'features', 'live', 'reading'"),
        ({"features": [{"name": "x", "kind": "number"}]}, "named features of width 1, the model reads 5"),
        ({"features": [{"name": "x", "kind": "text"}]}, "feature 'x' is of kind 'text'"),
        ({"features": {}}, "features is dict"),
        ({"reading": []}, "reading is list"),
        ({"live": {"graph": "g"}}, "live lacks sequence"),
        ({"live": {"graph": "g", "sequence": -1}}, "live sequence is -1, expected 0 or more"),
        ({"live": {"graph": "g", "sequence": 1.0}}, "live sequence is float"),
        ({"feature_entries": -1}, "feature_entries is -1"),
        ({"feature_entries": 7}, "does not list 'graph/features_indices.npy'"),
        ({"nodes": "60"}, "nodes is str"),
        ({"nodes": True}, "nodes is bool"),
        ({"nodes": 1}, "1 nodes and .* edges are not a graph"),
        ({"edges": -1}, "are not a graph"),
        ({"surprise": 1}, "has unknown keys: 'surprise'"),
        ({"node_ids": "|O"}, "node ids of type"),
        ({"classes": ["a"]}, "1 class names for 3 outputs"),
        ({"classes": [1, 2, 3]}, "a class name is not a string"),
        (
            {"states": {"dtype": "float8", "error": {"embeddings": 0.0, "logits": 0.0}}},
            "states dtype is 'float8', expected float32",
        ),
        ({"states": {"dtype": "float32", "error": {}}}, "states error lacks embeddings, logits"),
        ({"model": "../x"}, "a model cannot be called"),
        ({"model": "other"}, "belongs to model other, expected demo"),
        ({"states": {"dtype": ["float32"], "error": {}}}, "states dtype is list"),
        ({"states": {"dtype": "float32", "error": {"embeddings": "b", "logits": 0.0}}}, "states error embeddings is str"),
        ({"states": {"dtype": "float32", "error": {"a": 0.0}}}, "states error lacks embeddings, logits"),
        ({"node_ids": "|S²"}, "node ids of type"),
        ({"node_ids": "|S300"}, "node ids of type"),
        ({"probe_tolerance": 1e300}, "expected more than 0 and at most 0.1"),
        ({"probe_tolerance": 0.0}, "expected more than 0 and at most 0.1"),
        ({"files": {}}, "lists 0 files, too few for 2 layers"),
    ],
)
def test_wrong_values_in_the_manifest(folder: Path, change: dict[str, Any], reason: str) -> None:
    forge(folder, lambda content: content.update(change))
    refused(folder, "manifest.json", reason)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"format": 2, "format": 2}', "a key occurs twice"),
        ('{"format": NaN}', "NaN is not a JSON number"),
        ('{"format": 2}', "its snapshot hash is not that of its content"),
        ('{"format": 2, "probe_tolerance": 1e999}', "is not JSON that could be written again"),
        ('{"format": 2, "model": "\\ud800"}', "is not JSON that could be written again"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_file_that_is_not_a_manifest(folder: Path, text: str, reason: str) -> None:
    (folder / "manifest.json").write_text(text)
    refused(folder, "manifest.json", reason)


@pytest.mark.parametrize("layers", [30, 10**9])
def test_more_layers_than_files(folder: Path, layers: int) -> None:
    forge(folder, lambda content: content["config"].update(layers=layers))
    refused(folder, "manifest.json", f"lists 16 files, too few for {layers} layers")


def test_a_config_number_that_is_no_float(folder: Path) -> None:
    forge(folder, lambda content: content["config"].update(alpha=10**400))
    refused(folder, "manifest.json", "too large to convert to float")


def test_a_config_of_another_model(folder: Path) -> None:
    forge(folder, lambda content: content["config"].update(alpha=2.0))
    refused(folder, "manifest.json", "alpha must lie in")
    forge(folder, lambda content: content["config"].update(alpha=0.5, out_features=7))
    refused(folder, "states/logits.npy", "expected")
    forge(folder, lambda content: content["config"].update(out_features=3, heads=2))
    refused(folder, "weights.safetensors", "has shape")


@pytest.mark.parametrize("file", ["weights.safetensors", "sums.safetensors", "states/inputs.npy"])
def test_a_file_of_another_snapshot_with_hashes_that_fit(folder: Path, file: str) -> None:
    """The shapes are equal: only the recomputed sums of a sample of rows detect it."""
    shutil.copyfile(folder.parent / "2" / file, folder / file)
    forge(folder, unchanged)
    refused(folder, "sums.safetensors", "does not follow from the weights and the node states", "sizes")


def test_logits_of_another_snapshot_fail_the_probes(folder: Path) -> None:
    shutil.copyfile(folder.parent / "2" / "states/logits.npy", folder / "states/logits.npy")
    forge(folder, unchanged)
    with Snapshot.open(folder) as snapshot, pytest.raises(ProbeError, match="known by"):
        snapshot.replay()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda sums: sums["key_value"].fill(np.nan), "key_value holds NaN or infinity"),
        (lambda sums: sums["key"].fill(np.inf), "key holds NaN or infinity"),
        (lambda sums: sums.update(count=np.asarray(59)), "counts 59 rows, expected 60"),
        (lambda sums: sums.update(key=sums["key"].astype(np.float32)), "key is float32"),
        (lambda sums: sums.update(extra=np.zeros(1)), "holds .*extra"),
        (lambda sums: sums.pop("query_square"), "expected .*query_square"),
    ],
)
def test_invalid_sums(folder: Path, change: Callable[[Any], Any], reason: str) -> None:
    sums = load_file(folder / "sums.safetensors")
    change(sums)
    save_file(sums, folder / "sums.safetensors")
    forge(folder, unchanged)
    refused(folder, "sums.safetensors", reason)


@pytest.mark.parametrize(
    ("file", "place", "value", "reason"),
    [
        ("graph/indices.npy", 3, 60, "holds an index outside 0 to 59"),
        ("graph/indices.npy", 3, -1, "holds an index outside 0 to 59"),
        ("graph/indices.npy", 1, 0, "has a list that is not in ascending order"),
        ("graph/indptr.npy", 0, 1, "runs from 1 to"),
        ("graph/indptr.npy", 30, 0, "decreases"),
        ("states/degrees.npy", 2, 99, "does not agree with graph/indptr.npy"),
        ("graph/labels.npy", 7, 3, "the label of node 7 is 3, expected -1 to 2"),
        ("graph/labels.npy", 7, -2, "the label of node 7 is -2, expected -1 to 2"),
        ("graph/split.npy", 7, 3, r"holds a part other than 0 \(training\), 1"),
    ],
)
def test_arrays_that_do_not_form_a_graph(folder: Path, file: str, place: int, value: int, reason: str) -> None:
    array = np.load(folder / file)
    array[place] = value
    np.save(folder / file, array)
    forge(folder, unchanged)
    refused(folder, file, reason)
