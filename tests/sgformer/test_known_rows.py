"""Folding the sums into one matrix changes no answer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from sgformer import InferenceModel, KnownRows, UnknownNodeError, summarize
from tests.sgformer.cases import Case, cases


@settings(max_examples=60)
@given(cases())
def test_folded_answers_are_those_of_the_sums(case: Case) -> None:
    """Every variant, in float64: heads, value map or none, both normalisations."""
    weights = case.weights()
    summary = summarize(case.config, weights, case.graph, dtype=np.float64)
    model = InferenceModel(case.config, weights, np.float64)
    nodes = np.arange(case.graph.num_nodes)
    with np.errstate(all="ignore"):  # a denominator may be zero: then neither has a value
        expected = model.known(summary.states, summary.sums, nodes)
        found = KnownRows(model, weights, summary.states, summary.sums).answers(nodes)
    np.testing.assert_allclose(found.logits, expected.logits, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.embeddings, expected.embeddings, rtol=1e-10, atol=1e-10)
    with pytest.raises(UnknownNodeError):
        KnownRows(model, weights, summary.states, summary.sums).answers(np.array([case.graph.num_nodes]))
