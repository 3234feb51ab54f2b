"""The answer for a new node equals the full-graph forward with that node added. Everything else relies on this."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgformer import (
    Adjacency,
    FullForward,
    Graph,
    InferenceModel,
    ModelConfig,
    NewNodes,
    SGFormer,
    extend,
    full_logits,
    summarize,
)
from sgformer.arrays.torch_operations import placed_on
from sgformer.full_graph import passes
from tests.sgformer.cases import (
    Case,
    assert_close,
    cases,
    check_new_nodes,
    oracle,
    random_weights,
)


@given(cases())
def test_new_nodes_equal_the_full_recompute(case: Case) -> None:
    check_new_nodes(case)


@given(cases())
def test_new_nodes_equal_the_full_recompute_on_torch_tensors(case: Case) -> None:
    check_new_nodes(case, place=placed_on("cpu"))


@given(cases(), st.integers(1, 9))
def test_known_nodes_equal_the_full_forward(case: Case, chunk_rows: int) -> None:
    embeddings, logits = oracle(case, case.graph)
    summary = summarize(case.config, case.weights(), case.graph, dtype=np.float64, chunk_rows=chunk_rows)
    model = InferenceModel(case.config, case.weights(), np.float64)
    answers = model.known(summary.states, summary.sums, np.arange(case.graph.num_nodes))
    assert_close(answers.embeddings, embeddings)
    assert_close(answers.logits, logits)
    assert_close(full_logits(case.config, case.weights(), case.graph, dtype=np.float64), logits)


@given(cases(), st.integers(1, 6), st.integers(1, 30))
def test_the_streamed_forward_is_the_same_in_blocks_of_any_size(case: Case, rows: int, entries: int) -> None:
    _, logits = oracle(case, case.graph)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "BLOCK_ROWS", rows)
        patch.setattr(passes, "BLOCK_ENTRIES", entries)
        forward = FullForward(case.config, case.graph, np.float64)
        summary = summarize(case.config, case.weights(), case.graph, dtype=np.float64)
    other = {name: array + 0.5 for name, array in case.weights().items()}
    forward.logits(other)  # the working memory is reused: a call must not affect the next call
    assert_close(forward.logits(case.weights()), logits)
    model = InferenceModel(case.config, case.weights(), np.float64)
    assert_close(model.known(summary.states, summary.sums, np.arange(case.graph.num_nodes)).logits, logits)


@pytest.mark.parametrize("gnn_input", ["shared", "own", "features"])
def test_everything_may_be_memory_mapped_and_read_only(tmp_path: Path, gnn_input: Any) -> None:
    """As in a snapshot: results are written to files, and the graph and the states are read-only."""
    rng = np.random.default_rng(0)
    config = ModelConfig(in_features=5, out_features=3, hidden=4, layers=3, gnn_input=gnn_input)
    weights = random_weights(config, 0)

    def as_file(name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return np.lib.format.open_memmap(tmp_path / f"{name}.npy", mode="w+", dtype=dtype, shape=shape)

    def reopened(name: str, array: np.ndarray) -> np.ndarray:
        np.save(tmp_path / f"{name}.npy", array)
        return np.load(tmp_path / f"{name}.npy", mmap_mode="r")

    plain = Graph.build(rng.normal(size=(50, 5)).astype(np.float32), rng.integers(0, 50, size=(2, 120)))
    adjacency = Adjacency(reopened("indptr", plain.adjacency.indptr), reopened("indices", plain.adjacency.indices))
    graph = Graph(reopened("features", np.asarray(plain.features)), adjacency)
    in_files = summarize(config, weights, graph, allocate=as_file)
    names = {"inputs", "layer_1", "layer_2", "layer_3", "aggregate_1", "aggregate_2"}
    names |= set() if gnn_input == "shared" else {"layer_0"}
    assert {path.stem for path in tmp_path.glob("*.npy")} == names | {"indptr", "indices", "features"}
    for array in (in_files.states.inputs, *in_files.states.layers, *in_files.states.aggregates):
        array.setflags(write=False)
    expected = summarize(config, weights, plain)
    new = NewNodes.build(np.ones((1, 5)), [[1, 2, 3]], num_nodes=50, num_features=5)
    for place in (lambda array: array, placed_on("cpu")):
        model = InferenceModel(config, weights, place=place)
        left, right = (
            extend(model, summary.states, summary.sums, adjacency, new).logits
            for summary, adjacency in ((in_files, graph.adjacency), (expected, plain.adjacency))
        )
        np.testing.assert_array_equal(left, right)


@given(cases())
def test_trainable_module_equals_the_naive_forward(case: Case) -> None:
    model = SGFormer(case.config).double().eval()
    model.load_weights(case.weights())
    inputs = model.prepare(case.graph)
    embeddings, logits = oracle(case, case.graph)
    assert_close(model.embed(inputs).detach(), embeddings)
    assert_close(model(inputs).detach(), logits)
