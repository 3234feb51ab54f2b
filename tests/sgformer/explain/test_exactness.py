"""Explanations are exact: parts add up, and every effect is the difference of two full forwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgformer import NeighborhoodTooLarge, UnknownNodeError, full_logits
from sgformer.explain.branches import branch_shares, split_known
from sgformer.explain.explanation import CounterfactualSearch, decisions, explain
from sgformer.explain.features import grouped_variants
from sgformer.explain.subject import Budget, Subject
from tests.sgformer.cases import Case, cases, oracle
from tests.sgformer.explain.checks import check_known, check_new, check_split, opened
from tests.sgformer.explain.naive_parts import without_edges
from tests.sgformer.live.test_changing_graph import opened as opened_graph

FEWER = settings(max_examples=max(1, settings.default.max_examples // 4))


@given(cases())
@FEWER
def test_every_part_of_the_logits_equals_the_naive_one(case: Case) -> None:
    check_split(case)


@given(cases(), st.integers(0, 1000))
@FEWER
def test_effects_of_a_known_node_equal_full_forwards_without_the_link_or_feature(case: Case, node: int) -> None:
    check_known(case, node % case.graph.num_nodes)


@given(cases())
@FEWER
def test_effects_of_a_new_node_equal_full_forwards_without_the_link_or_feature(case: Case) -> None:
    check_new(case)


@given(cases(task="multiclass"))
@FEWER
def test_shares_of_all_nodes_add_up_to_one(case: Case) -> None:
    oracle(case, case.graph)
    live = opened(case)
    shares = branch_shares(live.model, live.states, live.sums, np.arange(case.graph.num_nodes))
    assert sum(shares.values()) == pytest.approx(1, abs=1e-9) or not any(shares.values())
    assert all(share >= 0 for share in shares.values())


def test_the_explanation_of_a_changed_graph_is_that_of_the_graph_as_it_is() -> None:
    live, _, _ = opened_graph(nodes=12)
    draft = live.draft()
    row = draft.add_node(np.ones((1, 5)))
    for other in (0, 3, 4):
        draft.add_edge(row, other)
    draft.remove_node(7)
    live.apply(draft.changes())
    explanation = explain(Subject.known(live, row, Budget()), "multiclass", 10)
    logits = live.known(np.array([row])).logits[0]
    np.testing.assert_allclose(explanation.branches.logits[0], logits, atol=1e-10)
    for other, effect in zip(explanation.neighbors.items, explanation.neighbors.effects, strict=True):
        without = live.draft()
        without.remove_edge(row, int(other))
        expected = logits - live.what_if(without.changes()).known(np.array([row])).logits[0]
        np.testing.assert_allclose(effect, expected, atol=1e-10)
    assert explanation.features is None


def test_a_counterfactual_is_as_small_as_the_best_of_all_sets_on_small_graphs() -> None:
    """In 40 cases: never smaller than the smallest set, equal in nearly all, and no link of it can stay."""
    sizes, smallest = [], []
    for seed in range(40):
        live, _, _ = opened_graph(nodes=14, layers=1 + seed % 3)
        node = seed % 14
        subject = Subject.known(live, node, Budget())
        links = subject.neighbors
        logits = subject.logits([links, *(np.delete(links, place) for place in range(len(links)))])
        search = CounterfactualSearch(subject, "multiclass", logits[0])
        found = search.run(links, logits[1:])
        subsets = [
            np.flatnonzero([number >> place & 1 for place in range(len(links))]) for number in range(1, 2 ** len(links))
        ]
        answers = subject.logits([np.delete(links, places) for places in subsets]) if subsets else logits[:0]
        changes = (decisions("multiclass", answers) != logits[0].argmax())[:, 0]
        best = min((len(places) for places, change in zip(subsets, changes, strict=True) if change), default=0)
        assert (found is None) <= (best == 0 or best > 1)
        if found is not None:
            sizes.append(len(found.removed))
            smallest.append(best)
    assert len(sizes) >= 5
    assert all(size >= best for size, best in zip(sizes, smallest, strict=True))
    assert np.mean(np.array(sizes) == smallest) >= 0.9


@dataclass(frozen=True)
class Rule:
    """Stands for a subject: links 2 and 5 together decide, and link 1 alone has the strongest effect."""

    margin: float

    def logits(self, neighbors: list[Any]) -> np.ndarray:
        removed = [set(range(8)) - set(links.tolist()) for links in neighbors]
        effects = [0.3 * (1 in gone) + 0.2 * (2 in gone) + 0.2 * (5 in gone) + 2 * ({2, 5} <= gone) for gone in removed]
        return np.array([[self.margin - effect, 0] for effect in effects])


@pytest.mark.parametrize(("margin", "expected"), [(1, [2, 5]), (9, None)])
def test_links_that_are_not_needed_are_returned(margin: float, expected: list[int] | None) -> None:
    rule: Any = Rule(margin)
    links = np.arange(8)
    search = CounterfactualSearch(rule, "multiclass", rule.logits([links])[0])
    found = search.run(links, rule.logits([np.delete(links, place) for place in links]))
    assert (None if found is None else found.removed.tolist()) == expected


@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_fidelity_is_that_of_pytorch_geometric(task: Any) -> None:
    """For explanations of a model: 1 - mean(y without the explanation = y), and the same with the explanation only."""
    strong = {"alpha": 0.99, "layers": 1, "gnn_activation": False, "hidden": 8}  # a graph that decides
    live, graph, weights = opened_graph(task=task, out_features=4, **strong)
    values = set()
    for node in range(30):
        explanation = explain(Subject.known(live, node, Budget()), task, 2)
        reported = explanation.neighbors.items
        others = np.setdiff1d(graph.adjacency.neighbors(np.array([node])), reported)
        graphs = [without_edges(graph, node, removed) for removed in ([], reported.tolist(), others.tolist())]
        logits = [full_logits(live.model.config, weights, changed, dtype=np.float64)[node] for changed in graphs]
        y_hat, without, only = decisions(task, np.stack(logits))
        assert explanation.fidelity == pytest.approx((1 - np.mean(without == y_hat), 1 - np.mean(only == y_hat)))
        values.add(explanation.fidelity)
    assert any(plus > minus for plus, minus in values), "equal ones would not show a mistake"


def test_work_beyond_the_budget_is_refused_before_it_is_done() -> None:
    live, _, _ = opened_graph(nodes=40, hub=True, layers=3)
    with pytest.raises(NeighborhoodTooLarge, match="limit is 50"):
        Subject.known(live, 0, Budget(50))
    budget = Budget(2000)
    subject = Subject.known(live, 0, budget)
    with pytest.raises(NeighborhoodTooLarge, match="limit is 2,000"):
        explain(subject, "multiclass", 3)
    with pytest.raises(UnknownNodeError):
        Subject.known(live, 40, Budget())


def test_only_the_strongest_are_reported() -> None:
    live, _, _ = opened_graph(nodes=30, hub=True)
    every = explain(Subject.known(live, 0, Budget()), "multiclass", 100)
    top = explain(Subject.known(live, 0, Budget()), "multiclass", 3)
    assert len(every.neighbors.items) == live.adjacency.degrees(np.array([0]))[0]
    assert top.neighbors.items.tolist() == every.neighbors.items[:3].tolist()


def test_a_group_of_features_is_replaced_by_its_missing_value() -> None:
    live, _, _ = opened_graph()
    row = np.array([[1.0, 0, 0, 2, 5]])
    groups, rows = grouped_variants(live.model, row, [0, 3, 4], [[0, 0, 1], [2], [0]])
    assert sorted(groups) == [0, 2]  # group 1 has its missing value already
    expected = {0: [0, 0, 1, 2, 5], 2: [1, 0, 0, 2, 0]}
    assert [expected[group] for group in groups] == rows.tolist()


def test_the_split_of_all_nodes_is_that_of_each() -> None:
    live, _, _ = opened_graph()
    together = split_known(live.model, live.states, live.sums, np.arange(30))
    alone = split_known(live.model, live.states, live.sums, np.array([7]))
    np.testing.assert_allclose(together.attention_self[7], alone.attention_self[0], rtol=1e-12)
