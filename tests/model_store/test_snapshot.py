"""Writing and reading snapshots as the format specifies."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store import ModelVersions, NodeIds, ProbeError, Store, StoreError
from model_store.publish.rounding import rounding_error
from sgformer import Graph, InferenceModel, NewNodes, NodeStates, SparseRows, summarize
from tests.model_store.samples import FEATURES, FILES, NODES, small_contents, small_graph


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_the_folder_holds_the_files_of_the_format(versions: ModelVersions) -> None:
    assert files_of(versions.folder / "1") == {"manifest.json", *FILES}
    assert {path.name for path in versions.folder.iterdir()} == {"1", "2", "CURRENT", "HISTORY", ".lock"}
    assert (versions.folder / "CURRENT").read_text() == "1\n"


def test_arrays_are_standard_npy_files(versions: ModelVersions) -> None:
    """Every npy reader can read them: the header is the one that numpy writes."""
    path = versions.folder / "1" / "graph" / "indptr.npy"
    adjacency = small_graph(1).adjacency
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': ({NODES + 1},), }}".ljust(117) + "\n"
    assert path.read_bytes() == b"\x93NUMPY\x01\x00\x76\x00" + header.encode() + adjacency.indptr.tobytes()
    np.testing.assert_array_equal(np.load(versions.folder / "1" / "states" / "degrees.npy"), adjacency.all_degrees())


def test_the_manifest_is_json_with_its_own_hash(versions: ModelVersions) -> None:
    import hashlib

    content = json.loads((versions.folder / "1" / "manifest.json").read_text())
    stated = content.pop("snapshot")
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert stated == hashlib.sha256(canonical.encode()).hexdigest()
    assert content["format"] == 4
    assert content["nodes"] == NODES
    weights = (versions.folder / "1" / "weights.safetensors").read_bytes()
    expected = {"size": len(weights), "sha256": hashlib.sha256(weights).hexdigest()}
    assert content["files"]["weights.safetensors"] == expected


@pytest.mark.parametrize("settings", [{}, {"gnn_input": "own", "normalization": "row"}, {"layers": 0}, {"layers": 4}])
@pytest.mark.parametrize("verify", ["full", "sizes"])
def test_an_opened_snapshot_answers_like_the_summary_in_memory(store: Store, settings: dict[str, Any], verify: Any) -> None:
    contents = small_contents(3, config=settings)
    version = store.publish("demo", contents, onnx=False)
    summary = summarize(contents.config, contents.weights, contents.graph)
    model = InferenceModel(contents.config, contents.weights)
    new = NewNodes.build(np.ones((1, FEATURES)), [[0, 5]], num_nodes=NODES, num_features=FEATURES)
    nodes = np.arange(NODES)
    with store.model("demo").open(version, verify) as snapshot:
        expected = model.known(summary.states, summary.sums, nodes).logits
        np.testing.assert_allclose(snapshot.known(nodes).logits, expected, rtol=0, atol=1e-6)
        assert not snapshot.states.inputs.flags.writeable
        assert snapshot.states.layers[0] is snapshot.states.inputs or settings.get("gnn_input") == "own"
        probes = snapshot.probes.replay(snapshot, 1e-4)
        assert set(probes) == {"known", "ordinary", "isolated", "hub", "joint"}
        answers = snapshot.extended(new)
    augmented = contents.graph.with_nodes(np.ones((1, FEATURES)), [[NODES, NODES], [0, 5]])
    grown = summarize(contents.config, contents.weights, augmented)
    expected = model.known(grown.states, grown.sums, np.array([NODES])).logits
    np.testing.assert_allclose(answers.logits, expected, rtol=1e-4, atol=1e-5)


def test_sparse_features_are_published(store: Store) -> None:
    graph = small_graph(4)
    dense = np.asarray(graph.features) * (np.random.default_rng(0).random(graph.features.shape) < 0.4)
    rows, columns = np.nonzero(dense)
    indptr = np.searchsorted(rows, np.arange(NODES + 1))
    sparse = Graph(SparseRows(indptr, columns, dense[rows, columns], FEATURES), graph.adjacency)
    store.publish("sparse", small_contents(4, sparse), onnx=False, activate=True)
    store.publish("dense", small_contents(4, Graph(dense, graph.adjacency)), onnx=False, activate=True)
    with store.model("sparse").open() as one, store.model("dense").open() as other:
        np.testing.assert_allclose(one.known(np.arange(NODES)).logits, other.known(np.arange(NODES)).logits, atol=1e-5)


def test_half_precision_states_are_half_as_large_and_record_their_error(store: Store) -> None:
    store.publish("demo", small_contents(5), onnx=False)
    store.publish("demo", small_contents(5), onnx=False, states="float16")
    versions = store.model("demo")
    sizes = [versions.manifest(version).files["states/layer_2.npy"].size for version in (1, 2)]
    assert sizes[0] - 128 == 2 * (sizes[1] - 128)
    error = versions.manifest(2).states_error
    with versions.open(1) as exact, versions.open(2) as rounded:
        nodes = np.arange(NODES)
        np.testing.assert_array_equal(rounded.known(nodes).logits, exact.known(nodes).logits)  # these are not rounded
        computed = rounded.model.known(rounded.states, rounded.sums, nodes)
        difference = np.abs(exact.known(nodes).logits - computed.logits).max()
    assert 0 < error["logits"] < 1e-2
    assert difference == pytest.approx(error["logits"], rel=0.01)  # float32 answers, by two ways
    assert versions.manifest(1).states_error == {"embeddings": 0.0, "logits": 0.0}


def test_a_snapshot_reports_its_rounding_error(store: Store) -> None:
    contents = small_contents(5, config={"gnn_activation": False, "alpha": 0.9})
    store.publish("demo", contents, onnx=False)
    store.publish("demo", contents, onnx=False, states="float16")
    versions, nodes = store.model("demo"), np.arange(NODES)
    new = NewNodes.build(
        np.ones((2, FEATURES)), [[0, 3], [5]], num_nodes=NODES, num_features=FEATURES, edges=[(0, 1)], joint=True
    )
    with versions.open(1) as exact, versions.open(2) as rounded:
        known = np.abs(exact.known(nodes).embeddings - rounded.known(nodes).embeddings).max()
        added = np.abs(exact.extended(new).embeddings - rounded.extended(new).embeddings).max()
        assert exact.rounding_error is None
        assert rounded.rounding_error == pytest.approx(known, rel=0.01)
        assert 0 < added <= rounded.rounding_error


def test_the_rounding_error_includes_new_nodes() -> None:
    """Known nodes use the first and last states, new nodes the states between them."""
    contents = small_contents(5, config={"gnn_activation": False})
    summary = summarize(contents.config, contents.weights, contents.graph)
    states = summary.states
    moved = NodeStates(states.inputs, states.layers, tuple(array + np.float32(0.1) for array in states.aggregates))
    error = rounding_error(contents.config, contents.weights, contents.graph, summary, moved)
    assert min(error.values()) > 0


def test_states_that_half_precision_cannot_hold_are_refused(store: Store) -> None:
    contents = small_contents(6)
    contents.weights["graph_layers.1.norm.bias"][:] = 1e6
    with pytest.raises(StoreError, match=r"layer_2 has numbers that half precision cannot hold; publish with float32"):
        store.publish("demo", contents, onnx=False, states="float16")
    assert store.models() == []


def test_nodes_are_found_by_their_own_ids(store: Store) -> None:
    names = [f"päckchen-{number}" for number in range(NODES)][::-1]
    store.publish("demo", small_contents(7, node_ids=NodeIds.build(names)), onnx=False, activate=True)
    with store.model("demo").open() as snapshot:
        assert snapshot.node_ids is not None
        assert snapshot.node_ids.rows(["päckchen-0", "päckchen-59"]).tolist() == [59, 0]
        assert snapshot.node_ids.names([0]) == ["päckchen-59"]


def test_opening_needs_no_torch(versions: ModelVersions) -> None:
    code = (
        "import sys; from model_store import Store; import numpy as np\n"
        f"s = Store({str(versions.folder.parent)!r}).model('demo').open(); s.probes.replay(s, 1e-4)\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'torch', 'onnx', 'onnxruntime', 'scipy'}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_an_engine_with_wrong_answers_fails_its_probes(versions: ModelVersions) -> None:
    with versions.open(1) as snapshot, versions.open(2) as other:
        with pytest.raises(ProbeError, match=r"known by .*allowed is 1.0e-04"):
            snapshot.probes.replay(other, 1e-4)

        class Nothing:
            def known(self, nodes: Any) -> Any:
                answers = snapshot.known(nodes)
                answers.logits[0, 0] = np.nan
                return answers

            extended = staticmethod(snapshot.extended)

        with pytest.raises(ProbeError, match="known by nan"):
            snapshot.probes.replay(Nothing(), 1e-4)


def test_probes_include_the_hub_and_the_isolated_node(versions: ModelVersions) -> None:
    with versions.open(1) as snapshot:
        questions = {probe.name: probe.question for probe in snapshot.probes.probes}
        hub = int(snapshot.adjacency.all_degrees().argmax())
    assert {0, NODES - 1, hub} <= set(questions["known"].tolist())
    assert hub in questions["hub"].neighbors
    assert len(questions["isolated"].neighbors) == 0
    assert questions["joint"].num_scenarios == 1
    assert questions["joint"].edges.tolist() == [[0], [1]]


def test_a_snapshot_with_wrong_answers_is_not_published(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the sums leaves every file well-formed, but the probes detect it."""
    from dataclasses import replace

    from model_store.publish import shared_forward

    def wrong(*arguments: Any, **options: Any) -> Any:
        summary = summarize(*arguments, **options)
        return replace(summary, sums=replace(summary.sums, key_value=summary.sums.key_value * 1.5))

    contents = small_contents(8)
    monkeypatch.setattr(shared_forward, "summarize", wrong)
    with pytest.raises(ProbeError, match="answers differ from the full-graph forward"):
        store.publish("demo", contents, onnx=False)
    assert store.models() == []
    assert [path.name for path in (store.root / "demo").iterdir()] == [".lock"]


def test_an_error_in_the_shared_attention_code_is_detected(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The expected answers of the probes come from a separate implementation."""
    contents, right = small_contents(8), InferenceModel.answer
    monkeypatch.setattr(InferenceModel, "answer", lambda self, z, attended, gcn: right(self, z, attended * 0 + 7, gcn))
    with pytest.raises(ProbeError, match="known by"):
        store.publish("demo", contents, onnx=False)


def test_the_tolerance_scales_with_small_answers(store: Store) -> None:
    """An engine that answers zero must fail, however small the correct answers are."""
    contents = small_contents(8)
    contents.weights["output.weight"][:] *= 1e-3
    contents.weights["output.bias"][:] = 0
    store.publish("demo", contents, onnx=False, states="float16", activate=True)
    with store.model("demo").open() as snapshot:
        logits = snapshot.known(np.arange(NODES)).logits
        assert np.abs(logits).max() < 0.02
        probe = snapshot.probes.probes[0]
        nothing = type(probe.answers)(probe.answers.embeddings, probe.answers.logits * 0)
        assert snapshot.probes.error(probe, nothing) > snapshot.manifest.probe_tolerance


def test_a_model_that_overflows_on_a_node_is_not_published(store: Store) -> None:
    graph = small_graph(9)
    np.asarray(graph.features)[17] = 1e38
    contents = small_contents(9, graph, config={"input_layer_norm": False})
    contents.weights["input.weight"][:] = 10
    with pytest.raises(StoreError, match="inputs of node 17 is NaN or infinite: the model overflows there"):
        store.publish("demo", contents, onnx=False)


def test_a_model_without_an_answer_for_a_node_is_not_published(store: Store) -> None:
    contents = small_contents(9)
    contents.weights["attention_norm.weight"][:] = 1e3
    contents.weights["output.weight"][1] = 3e38
    with pytest.raises(StoreError, match="the logits of node 0 are NaN or infinite: the model has no answer there"):
        store.publish("demo", contents, onnx=False)
    assert store.models() == []


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"scores": {"auc": float("nan")}}, "scores cannot be written as JSON"),
        ({"scores": {"auc": np.float32(1)}}, "scores cannot be written as JSON"),
        ({"dataset": {"path": Path()}}, "dataset cannot be written as JSON"),
        ({"classes": ("a", "b", "\ud800")}, "classes cannot be written as JSON"),
    ],
)
def test_metadata_that_is_not_json_is_refused_before_writing(store: Store, metadata: dict[str, Any], reason: str) -> None:
    with pytest.raises(StoreError, match=reason):
        store.publish("demo", small_contents(0, **metadata), onnx=False)
    with pytest.raises(StoreError, match="states are 'float8', expected one of float32, float16"):
        store.publish("demo", small_contents(0), states="float8")


def test_metadata_is_normalised_to_json(store: Store) -> None:
    contents = small_contents(0, scores={"per_class": {2: 0.5, 10: 0.6}}, classes=("eins", "zwei", "drei <&>"))
    store.publish("demo", contents, onnx=False)
    manifest = store.model("demo").manifest(1)
    assert manifest.scores == {"per_class": {"2": 0.5, "10": 0.6}}
    assert manifest.classes == ("eins", "zwei", "drei <&>")


@pytest.mark.parametrize(
    "settings",
    [
        {"layers": 1},
        {"gnn_input": "features", "layers": 3},
        {"heads": 3, "combine": "cat"},
        {"feature_transform": "standard", "task": "multilabel"},
        {"feature_transform": "row", "task": "regression", "gnn_residual": True},
        {"gnn_layer_residual": True, "layers": 4, "alpha": 1.0},
    ],
)
@pytest.mark.parametrize("states", ["float32", "float16"])
def test_every_kind_of_model_is_published(store: Store, settings: dict[str, Any], states: Any) -> None:
    store.publish("demo", small_contents(2, config=settings), onnx=False, states=states, activate=True)


@pytest.mark.parametrize("edges", [[[], []], [[0], [1]]])
@pytest.mark.parametrize("dtype", ["<f8", ">f4", "<f4"])
def test_the_smallest_graphs_are_published(store: Store, edges: Any, dtype: str) -> None:
    graph = Graph.build(np.ones((2, FEATURES), dtype=dtype), np.array(edges, dtype=np.int64))
    store.publish("demo", small_contents(2, graph), onnx=False, activate=True)


def test_wrong_numbers_of_ids_and_classes_are_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="2 node ids for 60 nodes"):
        store.publish("demo", small_contents(0, node_ids=NodeIds.build([1, 2])))
    with pytest.raises(StoreError, match="1 class names for 3 outputs"):
        store.publish("demo", small_contents(0, classes=("a",)))


def test_a_closed_snapshot_can_be_pruned_and_its_arrays_stay_readable(versions: ModelVersions) -> None:
    snapshot = versions.open(1)
    states = snapshot.states
    before = states.inputs[5].copy()
    snapshot.close()
    versions.activate(2)
    (versions.folder / "HISTORY").unlink()
    assert versions.prune(1).removed == [1]
    np.testing.assert_array_equal(states.inputs[5], before)
