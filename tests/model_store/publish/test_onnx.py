"""model.onnx on ONNX Runtime gives the answers of the numpy model and of the naive forward."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from model_store import ProbeError, Store
from model_store.publish import onnx_head
from model_store.publish.onnx_head import export_request_head, sum_feeds
from sgformer import Answers, Graph, InferenceModel, ModelConfig, summarize
from sgformer.full_graph.reference import reference_answers
from tests.model_store.samples import NODES, small_contents
from tests.sgformer.naive import naive_forward

VARIANTS: list[dict[str, Any]] = [
    {},
    {"normalization": "row", "heads": 2, "qkv_bias": False, "gnn_input": "own", "attention_activation": True},
    {"value_map": False, "combine": "cat", "attention_residual": None, "attention_layer_norm": False, "heads": 3},
    {"alpha": 0.2, "attention_residual": 0.8},
    {"gnn_batch_norm": False, "gnn_layer_norm": True, "gnn_input": "own"},
    {"gnn_layer_residual": True, "layers": 3, "alpha": 1.0},
    {"normalization": "row", "alpha": 0.3, "attention_residual": 0.1, "qkv_bias": False},
]
"""Some shares are not one half, so that swapped shares are detected."""


@pytest.mark.parametrize("settings", VARIANTS)
def test_onnx_runtime_and_the_probes_equal_numpy_and_the_naive_forward(tmp_path: Path, settings: dict[str, Any]) -> None:
    contents = small_contents(1, config=settings)
    check(contents.config, contents.weights, contents.graph, tmp_path)
    zero_queries = {name: array * 0 if name.startswith("query.") else array for name, array in contents.weights.items()}
    check(contents.config, zero_queries, contents.graph, tmp_path)  # a norm of zero, and rows of zeros


def check(config: ModelConfig, weights: Mapping[str, Any], graph: Graph, folder: Path) -> None:
    summary = summarize(config, weights, graph)
    model = InferenceModel(config, weights)
    export_request_head(config, weights, folder / "model.onnx")
    onnx.checker.check_model(folder / "model.onnx", full_check=True)
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    feeds = sum_feeds(summary.sums)
    _, naive_logits = naive_forward(config, weights, graph)
    for count in (1, 2, NODES):
        inputs, graph_states = summary.states.inputs[:count], summary.states.layers[-1][:count]
        query, key, value = model.project(inputs, "query", "key", "value")
        as_new = summary.sums.attend_each_added(query, key, value)
        for added, expected in (
            (np.zeros(count, np.float32), model.answer_from(summary.sums, inputs, graph_states)),
            (np.ones(count, np.float32), model.answer(inputs, as_new, graph_states)),
        ):
            rows = {"inputs": inputs, "graph_states": graph_states, "added": added}
            results = [Answers(*session.run(["embeddings", "logits"], rows | feeds))]
            if not added.any():
                results.append(reference_answers(config, weights, summary, np.arange(count)))
                np.testing.assert_allclose(results[0].logits, naive_logits[:count], rtol=1e-4, atol=1e-4)
            for answers in results:
                np.testing.assert_allclose(answers.embeddings, expected.embeddings, rtol=1e-5, atol=1e-5)
                np.testing.assert_allclose(answers.logits, expected.logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"normalization": "row", "attention_layer_norm": False}])
def test_a_row_that_overflows_is_nan_and_affects_no_other_row(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Divided by an infinite length, the row would become zeros, and these a finite wrong answer."""
    contents = small_contents(1, config=settings)
    summary = summarize(contents.config, contents.weights, contents.graph)
    export_request_head(contents.config, contents.weights, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    inputs = summary.states.inputs[:3] * np.float32([[1], [1e25], [1]])
    rows = {"inputs": inputs, "graph_states": summary.states.layers[-1][:3], "added": np.zeros(3, np.float32)}
    logits = session.run(["logits"], rows | sum_feeds(summary.sums))[0]
    assert np.isfinite(logits).all(axis=1).tolist() == [True, False, True]


def test_a_published_snapshot_has_model_onnx_and_its_manifest_describes_it(store: Store) -> None:
    store.publish("demo", small_contents(2), activate=True)
    with store.model("demo").open() as snapshot:
        assert snapshot.onnx_path is not None
        assert snapshot.manifest.onnx is not None
        assert snapshot.manifest.onnx["opset"] == 20
        assert snapshot.manifest.onnx["checked_on"] == ["CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(snapshot.onnx_path, providers=["CPUExecutionProvider"])
        assert [node.name for node in session.get_inputs()] == snapshot.manifest.onnx["inputs"]


def test_an_export_with_other_answers_is_not_published(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    contents, export = small_contents(2), onnx_head.export_request_head
    zeros = {name: array * 0 for name, array in contents.weights.items()}
    monkeypatch.setattr(onnx_head, "export_request_head", lambda config, _, path: export(config, zeros, path))
    with pytest.raises(ProbeError, match=r"model.onnx answers differently on ONNX Runtime, by"):
        store.publish("demo", contents)


def test_exporting_prints_nothing(tmp_path: Path) -> None:
    """Neither a warning nor a log line, in a fresh process."""
    code = (
        "import sys; from pathlib import Path; from tests.model_store.samples import small_contents\n"
        "from model_store.publish.onnx_head import export_request_head\n"
        "c = small_contents(); export_request_head(c.config, c.weights, Path(sys.argv[1]))"
    )
    command = [sys.executable, "-W", "always", "-c", code, str(tmp_path / "model.onnx")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == ("", "")
