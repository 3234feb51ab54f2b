"""The checks of explanations, which property tests run on the package as it is, and mutation tests with a defect."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from sgformer import ChangingGraph, Graph, InferenceModel, NewNodes, SparseRows, summarize
from sgformer.explain.branches import split_known
from sgformer.explain.explanation import Explanation, decisions, explain
from sgformer.explain.features import numbered_variants
from sgformer.explain.subject import Budget, Subject
from tests.sgformer.cases import Case, as_new_nodes, assert_close, augmented, oracle
from tests.sgformer.explain.naive_parts import naive_logits, naive_parts, without_edges

ALL = 10**6


def opened(case: Case) -> ChangingGraph:
    summary = summarize(case.config, case.weights(), case.graph, dtype=np.float64)
    model = InferenceModel(case.config, case.weights(), np.float64)
    return ChangingGraph(model, summary.states, summary.sums, case.graph.adjacency)


def check_split(case: Case) -> None:
    """Each part equals the naive part, and their sum the naive logits."""
    _, logits = oracle(case, case.graph)
    live = opened(case)
    parts = split_known(live.model, live.states, live.sums, np.arange(case.graph.num_nodes))
    assert_close(parts.logits, logits)
    for part, expected in zip(parts, naive_parts(case, case.graph), strict=True):
        assert_close(part, expected)


def check_known(case: Case, node: int) -> None:
    """A node of the graph: every effect equals the difference of two naive forwards."""
    oracle(case, case.graph)
    live, budget = opened(case), Budget()
    _, variants = numbered_variants(live.model, one_row(case.graph, node), 3)
    explanation = explain(Subject.known(live, node, budget), case.config.task, ALL, variants)
    _check(case, case.graph, node, explanation, one_row(case.graph, node))
    assert live.adjacency.num_nodes == case.graph.num_nodes
    assert live.version == 0


def check_new(case: Case) -> None:
    """A new node, alone in its scenario."""
    request = replace(case.request, edges=[], joint=False)
    graph = augmented(case.graph, as_new_nodes(case.graph, request), request, [0])
    oracle(case, graph)
    links = [sorted(set(case.request.neighbors[0]))]
    rows = one_row(graph, case.graph.num_nodes)
    alone = NewNodes.build(rows, links, num_nodes=case.graph.num_nodes, num_features=graph.num_features)
    live = opened(case)
    _, variants = numbered_variants(live.model, rows, 3)
    explanation = explain(Subject.new(live, alone, Budget()), case.config.task, ALL, variants)
    _check(case, graph, case.graph.num_nodes, explanation, rows)


def one_row(graph: Graph, node: int) -> Any:
    return graph.features[node : node + 1]


def _check(case: Case, graph: Graph, node: int, explanation: Explanation, rows: Any) -> None:
    logits = naive_logits(case, graph, node)
    assert_close(explanation.branches.logits[0], logits)
    for part, expected in zip(explanation.branches, naive_parts(case, graph), strict=True):
        assert_close(part[0], expected[node])
    links = graph.adjacency.neighbors(np.array([node]))
    assert sorted(explanation.neighbors.items) == links.tolist()
    for other, effect in zip(explanation.neighbors.items, explanation.neighbors.effects, strict=True):
        assert_close(effect, logits - naive_logits(case, without_edges(graph, node, [int(other)]), node))
    _check_features(case, graph, node, explanation, rows)
    if explanation.counterfactual is not None:
        removed = explanation.counterfactual.removed.tolist()
        changed = naive_logits(case, without_edges(graph, node, removed), node)
        assert_close(explanation.counterfactual.logits, changed)
        if np.abs(changed).min() > 1e-6 and len(set(changed.round(6))) == len(changed):  # no tie
            assert (decisions(case.config.task, changed[None]) != decisions(case.config.task, logits[None])).any()


def _check_features(case: Case, graph: Graph, node: int, explanation: Explanation, rows: Any) -> None:
    places, _ = numbered_variants(opened(case).model, rows, 3)
    assert explanation.features is not None
    assert len(explanation.features.items) == len(places)
    logits = naive_logits(case, graph, node)
    for item, effect in zip(explanation.features.items, explanation.features.effects, strict=True):
        dense = (graph.features.toarray() if isinstance(graph.features, SparseRows) else graph.features).copy()
        dense[node, places[item]] = 0
        assert_close(effect, logits - naive_logits(case, Graph(dense, graph.adjacency), node))
