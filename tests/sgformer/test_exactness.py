"""The one claim that everything rests on: a new node's answer equals the full-graph forward with that node added."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sgformer import InferenceModel, SGFormer, full_logits, summarize
from sgformer.torch_arrays import placed_on
from tests.sgformer.cases import (
    Case,
    assert_close,
    cases,
    check_new_nodes,
    oracle,
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


@given(cases())
def test_trainable_module_equals_the_naive_forward(case: Case) -> None:
    model = SGFormer(case.config).double().eval()
    model.load_weights(case.weights())
    inputs = model.prepare(case.graph)
    embeddings, logits = oracle(case, case.graph)
    assert_close(model.embed(inputs).detach(), embeddings)
    assert_close(model(inputs).detach(), logits)
