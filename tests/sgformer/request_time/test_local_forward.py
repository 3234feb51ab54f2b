"""The forward over a neighbourhood, the second route to an answer, equals the full-graph forward."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgformer import Adjacency, InferenceModel, NeighborhoodTooLarge, NewNodes, summarize
from sgformer.request_time.local_forward import LocalGraph, local_answers
from tests.sgformer.cases import Case, as_new_nodes, assert_close, cases, expected_new_nodes, oracle

MANY = 10**9


@settings(max_examples=150)
@given(cases(), st.integers(0, 10**6))
def test_known_nodes_equal_the_full_forward(case: Case, seed: int) -> None:
    _, logits = oracle(case, case.graph)
    rows = np.random.default_rng(seed).integers(0, case.graph.num_nodes, size=2)
    assert_close(local_logits(case, rows), logits[rows])


@settings(max_examples=150)
@given(cases())
def test_new_nodes_equal_the_full_forward_with_them(case: Case) -> None:
    new = as_new_nodes(case.graph, case.request)
    _, logits = expected_new_nodes(case, new)
    batch = NewNodes.merged([new, as_new_nodes(case.graph, replace(case.request, features=-case.request.features)), new])
    scenarios = [batch.scenario(number) for number in range(batch.num_scenarios)]
    answers = [
        local_logits(case, np.arange(0), part)
        for part in (*scenarios[: new.num_scenarios], *scenarios[-new.num_scenarios :])
    ]
    assert_close(np.concatenate(answers), np.concatenate([logits, logits]))


def local_logits(case: Case, rows: np.ndarray, new: NewNodes | None = None) -> np.ndarray:
    summary = summarize(case.config, case.weights(), case.graph, dtype=np.float64)
    model = InferenceModel(case.config, case.weights(), np.float64)

    def inputs(nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return summary.states.inputs[nodes], summary.states.layers[0][nodes]

    logits: np.ndarray = local_answers(model, inputs, summary.sums, case.graph.adjacency, rows, MANY, new).logits
    return logits


def test_a_neighbourhood_over_the_limit_is_refused_before_it_is_read() -> None:
    star = Adjacency.from_edges(np.stack([np.zeros(50, dtype=np.int64), np.arange(1, 51)]), 60)
    assert len(LocalGraph.around(star, np.array([1]), 1, max_entries=1).rows) == 2
    with pytest.raises(NeighborhoodTooLarge) as error:
        LocalGraph.around(star, np.array([1]), 2, max_entries=50)
    assert error.value.size == 51
    assert len(LocalGraph.around(star, np.array([1]), 2, max_entries=51).rows) == 51
