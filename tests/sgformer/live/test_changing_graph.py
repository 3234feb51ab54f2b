"""Answers on a changed graph equal the full forward over the graph rebuilt from scratch."""

from __future__ import annotations

import itertools
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from sgformer import (
    ChangeError,
    ChangingGraph,
    Graph,
    InferenceModel,
    ModelConfig,
    NewNodeError,
    NewNodes,
    UnknownNodeError,
    full_logits,
    summarize,
)
from sgformer.arrays.torch_operations import placed_on
from sgformer.live import changing_graph, layer_states
from sgformer.request_time.extension import extend
from sgformer.request_time.neighborhood import cost_of
from tests.sgformer.cases import assert_close, random_weights
from tests.sgformer.live.machine import LiveGraphMachine

OPERATIONS = int(os.environ.get("SGF_OPERATIONS", "3000"))

# 60 cases of 20 steps in the gate, 1,000 in `make fuzz`.
LiveGraphMachine.TestCase.settings = settings(max_examples=settings.default.max_examples // 2, stateful_step_count=20)
TestEveryChangeIsExact = LiveGraphMachine.TestCase


def opened(
    dtype: Any = np.float64, nodes: int = 30, hub: bool = False, **config: Any
) -> tuple[ChangingGraph, Graph, dict[str, np.ndarray]]:
    """A changing graph over random features, with its base and its weights; with a hub, node 0 is linked to all others."""
    rng = np.random.default_rng(0)
    edges = rng.integers(0, nodes, size=(2, 2 * nodes))
    if hub:
        edges = np.concatenate([edges, np.stack([np.zeros(nodes, dtype=np.int64), np.arange(nodes)])], axis=1)
    graph = Graph.build(rng.normal(size=(nodes, 5)), edges)
    made = ModelConfig(**({"in_features": 5, "out_features": 3, "hidden": 4, "layers": 2, "heads": 2} | config))
    weights = random_weights(made, 1)
    summary = summarize(made, weights, graph, dtype=dtype)
    model = InferenceModel(made, weights, dtype)
    return ChangingGraph(model, summary.states, summary.sums, graph.adjacency), graph, weights


def new_nodes(live: ChangingGraph, *neighbors: list[int]) -> NewNodes:
    features = np.random.default_rng(3).normal(size=(len(neighbors), 5))
    return NewNodes.build(features, neighbors, num_nodes=live.adjacency.num_nodes, num_features=5)


def test_without_changes_the_answers_are_those_of_the_stored_graph() -> None:
    live, graph, weights = opened()
    assert_close(live.known(np.arange(30)).logits, full_logits(live.model.config, weights, graph, dtype=np.float64))
    assert (live.num_nodes, live.adjacency.num_edges, live.size.states) == (30, graph.num_edges, 0)


def test_rows_are_numbered_on_and_never_reused() -> None:
    live, _, _ = opened()
    draft = live.draft()
    rows = [draft.add_node(np.ones((1, 5))) for _ in range(3)]
    assert rows == [30, 31, 32]
    draft.add_edge(30, 31)
    draft.remove_node(31)  # added and removed in one batch
    live.apply(draft.changes())
    assert (live.num_nodes, live.adjacency.num_nodes) == (32, 33)
    assert live.adjacency.is_removed(np.array([30, 31, 32])).tolist() == [False, True, False]
    assert live.adjacency.degrees(np.array([30, 31])).tolist() == [0, 0]
    assert live.draft().add_node(np.ones((1, 5))) == 33


def test_a_node_comes_with_its_edges_or_not_at_all() -> None:
    live, _, _ = opened()
    draft = live.draft()
    with pytest.raises(UnknownNodeError, match="node 99 is not in the graph"):
        draft.add_node(np.ones((1, 5)), [3, 99])
    row = draft.add_node(np.ones((1, 5)), [3, 4])
    assert row == 30
    live.apply(draft.changes())
    assert live.adjacency.neighbors(np.array([row])).tolist() == [3, 4]
    assert live.adjacency.has_edge(4, row)


def test_kept_lists_are_those_of_the_graph_as_it_is() -> None:
    live, _, _ = opened()
    rows = np.array([3, 5, 3])
    live.adjacency.with_neighbors(rows, keep=True)
    draft = live.draft()
    draft.add_node(np.ones((1, 5)), [3])
    live.apply(draft.changes())
    expected = [member for row in (3, 5, 3) for member in (row, *live.adjacency.neighbors(np.array([row])))]
    assert 30 in expected
    assert live.adjacency.with_neighbors(rows, keep=True).tolist() == expected
    assert live.adjacency.with_neighbors(rows).tolist() == expected


def test_changed_rows_are_those_that_came_or_whose_edges_or_features_changed() -> None:
    live, graph, _ = opened(nodes=600)
    assert live.changed_rows().tolist() == []
    draft = live.draft()
    new = draft.add_node(np.ones((1, 5)))
    draft.add_edge(new, 400)
    draft.set_features(7, np.ones((1, 5)))
    other = int(graph.adjacency.neighbors(np.array([300]))[0])
    draft.remove_edge(300, other)
    draft.remove_node(draft.add_node(np.ones((1, 5))))
    live.apply(draft.changes())
    assert live.changed_rows().tolist() == sorted({7, 300, other, 400, new})


def test_removed_and_unknown_nodes_are_refused() -> None:
    live, _, _ = opened()
    draft = live.draft()
    draft.remove_node(7)
    for call in (
        lambda: draft.add_edge(7, 8),
        lambda: draft.remove_node(7),
        lambda: draft.set_features(30, np.ones((1, 5))),
    ):
        with pytest.raises(UnknownNodeError, match=r"node (7|30) is not in the graph"):
            call()
    live.apply(draft.changes())
    with pytest.raises(UnknownNodeError, match="node 7 was removed") as unknown:
        live.known(np.array([3, 7]))
    assert unknown.value.node == 7
    with pytest.raises(UnknownNodeError, match="node 30 is not in the graph"):
        live.known(np.array([30]))
    with pytest.raises(NewNodeError, match="new node 1: neighbour 7 was removed"):
        live.extended(new_nodes(live, [1], [2, 7]))
    with pytest.raises(UnknownNodeError, match="node 7 is not in the graph"):
        live.draft().add_edge(7, 8)


def test_invalid_operations_are_refused() -> None:
    live, _, _ = opened()
    draft = live.draft()
    with pytest.raises(ChangeError, match="an edge from row 4 to itself"):
        draft.add_edge(4, 4)
    with pytest.raises(ChangeError, match=r"features have shape \(1, 6\), expected \(1, 5\)"):
        draft.add_node(np.ones((1, 6)))


def test_features_without_a_finite_value_are_refused_before_anything_changes() -> None:
    live, _, _ = opened(np.float32, input_layer_norm=False)
    draft = live.draft()
    draft.set_features(3, np.full((1, 5), 3e38))
    with pytest.raises(ChangeError, match="the features of row 3 are too large") as error:
        draft.changes()
    assert error.value.row == 3
    assert live.version == 0


def test_changes_belong_to_the_version_for_which_they_were_drafted() -> None:
    live, _, _ = opened()
    first, second = live.draft(), live.draft()
    live.apply(first.changes())
    with pytest.raises(ChangeError, match="the changes are for version 0 of the graph, which is now 1"):
        live.apply(second.changes())


def test_a_what_if_of_a_what_if() -> None:
    live, _, _ = opened(hub=True, layers=3)
    before = live.known(np.arange(30)).logits
    draft = live.draft()
    draft.remove_node(0)
    without_hub = live.what_if(draft.changes())
    draft = without_hub.draft()
    row = draft.add_node(np.ones((1, 5)))
    draft.add_edge(row, 5)
    both = without_hub.what_if(draft.changes())
    assert (live.num_nodes, without_hub.num_nodes, both.num_nodes) == (30, 29, 30)
    draft = live.draft()
    draft.remove_node(0)
    draft.add_edge(draft.add_node(np.ones((1, 5))), 5)
    at_once = live.what_if(draft.changes())
    rows = np.arange(1, 31)
    assert_close(both.known(rows).logits, at_once.known(rows).logits)
    np.testing.assert_array_equal(live.known(np.arange(30)).logits, before)


@pytest.mark.parametrize("gnn_input", ["shared", "own", "features"])
def test_a_compacted_graph_runs_through_the_full_forward(gnn_input: str) -> None:
    live, _, weights = opened(gnn_input=gnn_input, layers=3)
    draft = live.draft()
    draft.remove_node(3)
    for neighbor in (1, 2, 4):
        draft.add_edge(neighbor, 30) if draft.has_node(30) else draft.add_node(np.ones((1, 5)))
    live.apply(draft.changes())
    rows, graph = live.compacted()
    assert rows.tolist() == [0, 1, 2, *range(4, 31)]
    assert graph.num_edges == live.adjacency.num_edges
    summary = summarize(live.model.config, weights, graph, dtype=np.float64, chunk_rows=7)
    again = ChangingGraph(live.model, summary.states, summary.sums, graph.adjacency)
    assert_close(again.known(np.arange(30)).logits, live.known(rows).logits)
    assert_close(again.sums.key_value, live.sums.key_value)


def test_sums_are_exact_after_the_removal_of_nearly_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys of the other nodes are zero: what subtraction leaves of the removed nodes would be all there is."""
    plain = {"hidden": 1, "heads": 1, "qkv_bias": False, "input_layer_norm": False, "layers": 1}

    def remaining_norm() -> float:
        live, _, _ = opened(**plain)
        inputs = live.states.inputs.take(np.arange(30))[:, 0]
        assert 5 < (inputs > 0).sum() < 25
        for row in np.flatnonzero(inputs > 0).tolist():
            draft = live.draft()
            draft.remove_node(row)
            live.apply(draft.changes())
        return float(live.sums.key_square)

    assert remaining_norm() == 0
    monkeypatch.setattr(changing_graph, "_magnitudes", lambda _sums: np.ones(3))
    assert remaining_norm() != 0


def test_the_last_node_may_go() -> None:
    live, _, _ = opened(nodes=2)
    draft = live.draft()
    draft.remove_node(0)
    draft.remove_node(1)
    live.apply(draft.changes())
    assert (live.num_nodes, live.sums.count) == (0, 0)
    alone = live.extended(new_nodes(live, [])).logits
    draft = live.draft()
    row = draft.add_node(np.random.default_rng(3).normal(size=(1, 5)))
    live.apply(draft.changes())
    assert_close(live.known(np.array([row])).logits, alone)


def test_answers_do_not_depend_on_the_batch() -> None:
    """On numpy, bit for bit, whatever was stale before."""
    rows, logits = np.arange(1, 30), []
    for order in (rows, rows[::-1], rows[rows % 3 == 0]):
        live, _, _ = opened(np.float32, hub=True, layers=3, hidden=8)
        draft = live.draft()
        draft.remove_edge(0, 5)
        draft.set_features(9, np.ones((1, 5), dtype=np.float32))
        live.apply(draft.changes())
        answers = live.known(order).logits
        logits.append({row: answers[place].tobytes() for place, row in enumerate(order.tolist())})
        assert all(live.known(np.array([row])).logits[0].tobytes() == bits for row, bits in logits[-1].items())
    assert logits[0] == logits[1]
    assert all(logits[0][row] == bits for row, bits in logits[2].items())


def test_stored_states_may_be_half_precision_and_the_model_on_torch() -> None:
    live, graph, weights = opened(np.float32, hub=True)
    summary = summarize(live.model.config, weights, graph)
    halved = [array.astype(np.float16) for array in summary.states.layers]
    states = type(summary.states)(
        halved[0], (halved[0], *halved[1:]), tuple(array.astype(np.float16) for array in summary.states.aggregates)
    )
    rounded = ChangingGraph(live.model, states, summary.sums, graph.adjacency)
    for changing in (live, rounded):
        draft = changing.draft()
        draft.remove_edge(0, 5)
        changing.apply(draft.changes())
    assert_close(rounded.known(np.arange(30)).logits, live.known(np.arange(30)).logits, 1e-2)
    new = new_nodes(live, [1, 2], [0])
    torch_model = InferenceModel(live.model.config, weights, place=placed_on("cpu"))
    on_torch = extend(torch_model, live.states, live.sums, live.adjacency, new)
    assert_close(on_torch.logits, live.extended(new).logits, 1e-5)
    assert cost_of(new, live.adjacency, 2) > 0


def test_cost_and_memory_do_not_grow_with_the_graph() -> None:
    """A change reads the lists around it. The overlay holds what changed, and at most a page per row and table."""
    sizes = []
    for nodes in (1_000, 50_000):
        live, _, _ = opened(np.float32, nodes=nodes)
        draft = live.draft()
        row = draft.add_node(np.ones((1, 5), dtype=np.float32))
        draft.add_edge(row, 5)
        applied = live.apply(draft.changes())
        assert applied.rows == 2
        assert applied.states == applied.entries == live.adjacency.degrees(np.array([5]))[0] + 1
        live.known(np.array([5, row]))
        sizes.append(live.size.num_bytes)
    assert max(sizes) < 500_000


@pytest.mark.parametrize("layers", [2, 4])
def test_stale_states_are_computed_in_bounded_steps(layers: int) -> None:
    live, graph, weights = opened(nodes=300, layers=layers)
    draft = live.draft()
    for row in range(0, 300, 3):
        draft.set_features(row, np.ones((1, 5)))
    live.apply(draft.changes())
    asked = np.arange(100)
    rows = np.concatenate([asked, live.adjacency.neighbors(asked)])
    sizes = [live.size.states]
    while not live.refresh(rows, 40):
        sizes.append(live.size.states)
    assert len(sizes) > 3
    assert all(0 < after - before <= 40 * (layers - 1) for before, after in itertools.pairwise(sizes))
    computed = live.size.states
    features = np.array(graph.features)
    features[::3] = 1
    full = full_logits(live.model.config, weights, Graph(features, graph.adjacency), dtype=np.float64)
    assert_close(live.known(asked).logits, full[asked], 1e-10)
    assert live.size.states == computed


@pytest.mark.parametrize("layers", [2, 3])
def test_a_warm_up_stops_at_its_limit(layers: int) -> None:
    live, _, _ = opened(nodes=300, layers=layers)
    draft = live.draft()
    for row in range(300):
        draft.set_features(row, np.ones((1, 5)))
    live.apply(draft.changes())
    assert 0 < live.warm_up(50) <= 50
    done = live.size.states
    assert 0 < done <= 50
    assert live.warm_up(10**6) > 0
    assert live.size.states == 300 * (layers - 1)
    assert live.refresh(np.arange(300), 1)


@pytest.mark.parametrize("layers", [2, 3])
def test_totals_that_are_read_between_changes_stay_exact_in_float64(layers: int) -> None:
    """Reads keep the totals: hundreds of updates follow each other without a new sum."""
    live, graph, weights = opened(nodes=60, layers=layers, hidden=8)
    rng, features = np.random.default_rng(2), list(np.asarray(graph.features))
    for step in range(400):
        draft = live.draft()
        for _ in range(3):
            random_operation(draft, rng, features)
        live.apply(draft.changes())
        rows, now = live.compacted()
        known = live.known(rows).logits
        if step % 40 == 39:
            current = Graph(np.array(features)[rows], now.adjacency)
            assert_close(known, full_logits(live.model.config, weights, current, dtype=np.float64), 1e-10)


def test_a_total_that_is_read_is_updated_and_one_that_is_not_is_summed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """After some updates without a read, a row is stale: nothing may ever read it again."""
    live, _, _ = opened(nodes=200)
    read, summed, original = np.arange(200), [], layer_states.received
    live.known(read)

    def received(adjacency: Any, senders: Any, rows: Any) -> Any:
        summed.append(len(rows))
        return original(adjacency, senders, rows)

    def change(value: float) -> None:
        draft = live.draft()
        draft.set_features(3, np.full((1, 5), value))
        live.apply(draft.changes())

    change(0.0)
    live.known(read)  # sums the totals that the first change made stale
    monkeypatch.setattr(layer_states, "received", received)
    for value in range(1, 6):
        change(value)
        live.known(read)
    assert summed == [200] * 5  # of the last layer only: the totals of the first are updated
    assert live.refresh(np.array([3]), 1)
    for value in range(50):
        change(value)
    around = np.array([3, *live.adjacency.neighbors(np.array([3]))])
    assert not live.refresh(around, 1)
    live.known(read)
    monkeypatch.setattr(layer_states, "MAX_UPDATED_ROWS", len(around) - 1)
    change(0)
    assert not live.refresh(around, 1)


def test_a_total_that_becomes_small_step_by_step_is_summed_again() -> None:
    """No update makes it much smaller than the one before, but together they would cost it all digits."""
    live, graph, weights = opened(nodes=2, gnn_input="features", gnn_batch_norm=False, input_layer_norm=False)
    draft = live.draft()
    for power in range(13):
        draft.add_node(np.full((1, 5), 8.0**power), [0])
    live.apply(draft.changes())
    for row in reversed(range(2, 15)):
        live.known(np.array([0, 1]))
        draft = live.draft()
        draft.remove_node(row)
        live.apply(draft.changes())
    expected = full_logits(live.model.config, weights, graph, dtype=np.float64)
    assert_close(live.known(np.array([0, 1])).logits, expected)


def test_a_row_that_becomes_stale_keeps_its_place_in_the_tables() -> None:
    live, _, _ = opened(nodes=300)
    sizes = []
    for _ in range(20):
        draft = live.draft()
        for row in range(0, 300, 3):
            draft.set_features(row, np.full((1, 5), 2.0))
        live.apply(draft.changes())
        assert live.size.states == 0 or live.refresh(np.arange(300), 10**6)
        live.known(np.arange(300))
        sizes.append((live.size.states, live.size.num_bytes))
    assert len(set(sizes[1:])) == 1


@pytest.mark.parametrize("push_degree", [64, 1024])
def test_float32_answers_stay_exact_for_thousands_of_changes(push_degree: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a graph with a hub, whose total is updated by all these changes (64) or summed again at reads (1024)."""
    monkeypatch.setattr(layer_states, "PUSH_DEGREE", push_degree)
    live, graph, weights = opened(np.float32, nodes=400, hub=True, hidden=16)
    rng, features = np.random.default_rng(1), list(np.asarray(graph.features))
    for step in range(OPERATIONS // 50):
        draft = live.draft()
        for _ in range(50):
            random_operation(draft, rng, features)
        live.apply(draft.changes())
        if step % max(OPERATIONS // 500, 1) == 0 or step == OPERATIONS // 50 - 1:
            rows, now = live.compacted()
            full = full_logits(live.model.config, weights, Graph(np.array(features)[rows], now.adjacency), dtype=np.float64)
            assert_close(live.known(rows).logits, full, 1e-5)
    assert live.num_nodes > 200


def random_operation(draft: Any, rng: np.random.Generator, features: list[np.ndarray]) -> None:
    """Edges at the hub, node 0, and elsewhere; nodes that come, change and go."""
    left, right = (int(row) for row in rng.integers(1, len(features), size=2))
    kind = rng.random()
    if kind < 0.1:
        features.append(rng.normal(size=5))
        row = draft.add_node(features[-1][None])
        for neighbor in {0, left, right}:
            if draft.has_node(neighbor):
                draft.add_edge(row, neighbor)
    elif not draft.has_node(left):
        return
    elif kind < 0.2:
        draft.remove_node(left)
    elif kind < 0.4:
        features[left] = rng.normal(size=5)
        draft.set_features(left, features[left][None])
    else:
        right = 0 if kind < 0.7 else right
        if left != right and draft.has_node(right) and not draft.add_edge(left, right):
            draft.remove_edge(left, right)
