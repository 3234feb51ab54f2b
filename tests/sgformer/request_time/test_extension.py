from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgformer import (
    Adjacency,
    Graph,
    InferenceModel,
    ModelConfig,
    NeighborhoodTooLarge,
    NewNodes,
    Summary,
    extend,
    summarize,
)
from sgformer.features import MixedRows, SparseRows
from sgformer.request_time import neighborhood
from tests.sgformer.cases import (
    Case,
    Request,
    as_new_nodes,
    cases,
    check_new_nodes,
    random_weights,
)


def small_world(layers: int, nodes: int = 400, dtype: Any = np.float32) -> tuple[InferenceModel, Summary, Graph]:
    rng = np.random.default_rng(layers)
    graph = Graph.build(rng.normal(size=(nodes, 5)), rng.integers(0, nodes, size=(2, 3 * nodes)))
    config = ModelConfig(in_features=5, out_features=3, hidden=16, heads=2, layers=layers, gnn_residual=True)
    weights = random_weights(config, seed=layers)
    return InferenceModel(config, weights, dtype), summarize(config, weights, graph, dtype=dtype), graph


def new_nodes(graph: Graph, neighbors: list[list[int]], seed: int = 0, **options: Any) -> NewNodes:
    features = np.random.default_rng(seed).normal(size=(len(neighbors), graph.num_features))
    return NewNodes.build(features, neighbors, num_nodes=graph.num_nodes, num_features=graph.num_features, **options)


def single(new: NewNodes, item: int, neighbors: list[int], graph: Graph) -> NewNodes:
    rows: Any = new.features[item : item + 1]
    return NewNodes.build(rows, [neighbors], num_nodes=graph.num_nodes, num_features=graph.num_features)


@pytest.mark.parametrize("layers", range(5))
@pytest.mark.parametrize("mode", ["exact", "frozen"])
def test_an_answer_has_the_same_bits_alone_and_in_a_batch(layers: int, mode: Any) -> None:
    model, summary, graph = small_world(layers)
    rng = np.random.default_rng(7)
    neighbors = [list(rng.integers(0, graph.num_nodes, size=size)) for size in (0, 1, 3, 10, 40, 2, 17)]
    batch = new_nodes(graph, neighbors)
    answers = extend(model, summary.states, summary.sums, graph.adjacency, batch, mode)
    for item, ids in enumerate(neighbors):
        alone = extend(model, summary.states, summary.sums, graph.adjacency, single(batch, item, ids, graph), mode)
        np.testing.assert_array_equal(answers.embeddings[item], alone.embeddings[0])
        np.testing.assert_array_equal(answers.logits[item], alone.logits[0])
        assert answers.recomputed[item] == alone.recomputed[0]


def test_known_nodes_have_the_same_bits_alone_and_in_a_batch() -> None:
    model, summary, graph = small_world(2)
    batch = model.known(summary.states, summary.sums, np.arange(graph.num_nodes))
    for node in (0, 1, 200, 399):
        alone = model.known(summary.states, summary.sums, np.array([node]))
        np.testing.assert_array_equal(batch.logits[node], alone.logits[0])


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
def test_merged_requests_keep_their_own_answers(layers: int) -> None:
    model, summary, graph = small_world(layers)
    requests = [
        new_nodes(graph, [[1, 2], [3]], seed=1),
        new_nodes(graph, [[1, 2], [], [5]], seed=2, joint=True, edges=[(0, 1), (1, 2)]),
        new_nodes(graph, [[4, 1]], seed=3),
    ]
    merged = extend(model, summary.states, summary.sums, graph.adjacency, NewNodes.merged(requests))
    separate = [extend(model, summary.states, summary.sums, graph.adjacency, request) for request in requests]
    np.testing.assert_array_equal(merged.logits, np.concatenate([answers.logits for answers in separate]))
    np.testing.assert_array_equal(merged.recomputed, np.concatenate([answers.recomputed for answers in separate]))


@pytest.mark.parametrize("transform", ["none", "row", "standard"])
def test_the_precision_of_other_rows_in_a_batch_does_not_matter(transform: Any) -> None:
    rng = np.random.default_rng(1)
    graph = Graph.build(rng.normal(size=(60, 5)), rng.integers(0, 60, size=(2, 90)))
    config = ModelConfig(in_features=5, out_features=3, hidden=16, feature_transform=transform)
    weights = random_weights(config, 0)
    model, summary = InferenceModel(config, weights), summarize(config, weights, graph)
    narrow, wide = (
        NewNodes.build(rng.normal(size=(3, 5)).astype(kind), [[1], [2, 3], []], num_nodes=60, num_features=5)
        for kind in (np.float32, np.float64)
    )
    merged = extend(model, summary.states, summary.sums, graph.adjacency, NewNodes.merged([narrow, wide]))
    alone = extend(model, summary.states, summary.sums, graph.adjacency, narrow)
    np.testing.assert_array_equal(merged.logits[:3], alone.logits)


@given(cases())
def test_edges_between_hubs_are_found_by_bisection_too(case: Case) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighborhood, "BISECTION_COST", 0)
        check_new_nodes(case)


@given(cases(), st.integers(1, 3))
def test_edges_between_hubs_and_ordinary_nodes_are_found(case: Case, degree: int) -> None:
    """Nodes above `degree` are hubs: their edges are found in the neighbour lists of the other nodes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighborhood, "BISECTION_COST", degree / max(1, len(case.request.neighbors[0])))
        check_new_nodes(case)


@pytest.mark.parametrize("layers", [2, 3, 4])
def test_a_new_node_attached_to_a_hub(layers: int) -> None:
    rng = np.random.default_rng(0)
    star = np.stack([np.zeros(600, dtype=np.int64), np.arange(1, 601)])
    graph = Graph.build(rng.normal(size=(601, 5)), np.concatenate([star, rng.integers(0, 601, size=(2, 500))], axis=1))
    config = ModelConfig(in_features=5, out_features=3, hidden=8, layers=layers)
    check_new_nodes(Case(config, 1, graph, Request(rng.normal(size=(2, 5)), [[0], [0, 5, 9]], [(0, 1)], True)))


class ReadCounter(np.ndarray):
    """Adjacency indices that count how many of their entries are read."""

    read = 0

    def __getitem__(self, key: Any) -> Any:
        entries = np.asarray(self)[key]
        ReadCounter.read += np.size(entries)
        return entries


@pytest.mark.parametrize(("layers", "most"), [(1, 0), (2, 300), (3, 20_020)])
def test_the_list_of_a_hub_is_not_read_with_two_layers_and_read_once_with_three(layers: int, most: int) -> None:
    count = 20_000
    star = np.stack([np.zeros(count - 1, dtype=np.int64), np.arange(1, count)])
    graph = Graph.build(np.random.default_rng(0).normal(size=(count, 5)), star)
    config = ModelConfig(in_features=5, out_features=3, hidden=4, layers=layers)
    weights = random_weights(config, 0)
    summary = summarize(config, weights, graph)
    counted = Adjacency(graph.adjacency.indptr, graph.adjacency.indices.view(ReadCounter))
    ReadCounter.read = 0
    model = InferenceModel(config, weights)
    extend(model, summary.states, summary.sums, counted, new_nodes(graph, [[0, 1, 2, 3]]))
    assert ReadCounter.read <= most


@given(cases())
def test_frozen_is_exact_with_at_most_one_layer_only(case: Case) -> None:
    summary = summarize(case.config, case.weights(), case.graph, dtype=np.float64)
    model = InferenceModel(case.config, case.weights(), np.float64)
    new = as_new_nodes(case.graph, case.request)
    with np.errstate(all="ignore"):
        frozen = extend(model, summary.states, summary.sums, case.graph.adjacency, new, "frozen")
        exact = extend(model, summary.states, summary.sums, case.graph.adjacency, new, "exact")
    assert (frozen.recomputed == 0).all()
    if case.config.layers < 2:
        assert frozen.exactness == "exact"
        np.testing.assert_array_equal(frozen.logits, exact.logits)
    else:
        assert frozen.exactness == "frozen"


def test_frozen_differs_from_exact_beyond_one_layer() -> None:
    model, summary, graph = small_world(3, dtype=np.float64)
    new = new_nodes(graph, [[0, 1, 2]])
    frozen = extend(model, summary.states, summary.sums, graph.adjacency, new, "frozen")
    exact = extend(model, summary.states, summary.sums, graph.adjacency, new)
    assert np.abs(frozen.logits - exact.logits).max() > 1e-6


def test_recomputed_counts_the_states_of_every_layer() -> None:
    """A path 0-1-2-3-4-5-6 and a new node at 3: L=2 recomputes 3 once; L=3 {2,3,4} and 3; L=5 3 + 5 + 3 + 1."""
    path = np.stack([np.arange(6), np.arange(1, 7)])
    graph = Graph.build(np.eye(7, 5), path)
    for layers, expected in ((0, 0), (1, 0), (2, 1), (3, 4), (4, 7), (5, 12)):
        config = ModelConfig(in_features=5, out_features=1, hidden=2, layers=layers)
        weights = random_weights(config, 0)
        summary = summarize(config, weights, graph)
        model = InferenceModel(config, weights)
        answers = extend(model, summary.states, summary.sums, graph.adjacency, new_nodes(graph, [[3], [3]]))
        assert list(answers.recomputed) == [expected, expected]


def test_a_neighborhood_over_the_limit_is_refused_before_it_is_read() -> None:
    model, summary, graph = small_world(3)
    degree = int(graph.adjacency.degrees(np.array([7]))[0])
    new = new_nodes(graph, [[], [7]])
    size = degree + 2  # the neighbour, its neighbour list and its self-loop
    message = rf"new node 1: .* {size} adjacency entries, the limit is {degree}"
    with pytest.raises(NeighborhoodTooLarge, match=message) as caught:
        extend(model, summary.states, summary.sums, graph.adjacency, new, max_recompute=degree)
    assert (caught.value.item, caught.value.size, caught.value.limit) == (1, size, degree)
    extend(model, summary.states, summary.sums, graph.adjacency, new, max_recompute=size)


@pytest.mark.parametrize("layers", [2, 3, 4, 5])
def test_the_limit_is_for_all_new_nodes_of_a_request(layers: int) -> None:
    model, summary, graph = small_world(layers)
    one_node, many = new_nodes(graph, [[7, 8]]), new_nodes(graph, [[7, 8]] * 50)
    limit = next(
        limit for limit in range(1, 10_000) if not is_refused(model, summary, graph, one_node, limit)
    )  # what a single node needs
    assert is_refused(model, summary, graph, many, 50 * limit - 1)
    assert not is_refused(model, summary, graph, many, 50 * limit)


def is_refused(model: InferenceModel, summary: Summary, graph: Graph, new: NewNodes, limit: int) -> bool:
    try:
        extend(model, summary.states, summary.sums, graph.adjacency, new, max_recompute=limit)
    except NeighborhoodTooLarge:
        return True
    return False


@pytest.mark.parametrize("layers", [0, 2, 3])
@pytest.mark.parametrize("transform", ["none", "row"])
def test_dense_and_sparse_rows_of_a_request_have_the_same_bits_as_alone(layers: int, transform: Any) -> None:
    rng = np.random.default_rng(layers)
    nodes, width = 200, 40
    graph = Graph.build(rng.normal(size=(nodes, width)), rng.integers(0, nodes, size=(2, 3 * nodes)))
    config = ModelConfig(in_features=width, out_features=3, hidden=16, layers=layers, feature_transform=transform)
    weights = random_weights(config, seed=layers)
    model, summary = InferenceModel(config, weights), summarize(config, weights, graph)

    def answers(features: Any, neighbors: list[list[int]], **options: Any) -> Any:
        new = NewNodes.build(features, neighbors, num_nodes=nodes, num_features=width, **options)
        return new, extend(model, summary.states, summary.sums, graph.adjacency, new).logits

    for _ in range(100):
        dense, values = rng.normal(size=(2, width)), rng.normal(size=6)
        sparse = SparseRows(np.array([0, 2, 6]), np.array([1, 30, 0, 5, 7, 39]), values, width)
        neighbors = [list(rng.integers(0, nodes, size=3)) for _ in range(4)]
        order = np.array([False, True, False, True])
        new, batch = answers(MixedRows(dense, sparse, order), neighbors)
        for item, alone in enumerate([dense[:1], sparse[:1], dense[1:], sparse[1:]]):
            request, expected = answers(alone, [neighbors[item]])
            np.testing.assert_array_equal(batch[item], expected[0])
            merged = extend(model, summary.states, summary.sums, graph.adjacency, NewNodes.merged([request, new, request]))
            np.testing.assert_array_equal(merged.logits, np.concatenate([expected, batch, expected]))
        if layers < 2:
            break


def test_there_is_no_limit_if_nothing_is_recomputed() -> None:
    for layers, mode in ((3, "frozen"), (1, "exact"), (0, "exact")):
        model, summary, graph = small_world(layers)
        new = new_nodes(graph, [[1, 2, 3, 4]])
        answers = extend(model, summary.states, summary.sums, graph.adjacency, new, mode, max_recompute=1)
        assert answers.recomputed[0] == 0


@pytest.mark.parametrize(("layers", "neighbors"), [(2, 60), (4, 3)])
def test_the_limit_includes_the_search_for_inner_edges(layers: int, neighbors: int) -> None:
    model, summary, graph = small_world(layers, nodes=4000)
    new = new_nodes(graph, [list(range(neighbors))])
    refused = []
    for limit in (neighbors, 3 * neighbors, 10 * neighbors, 100 * neighbors):
        counted = Adjacency(graph.adjacency.indptr, graph.adjacency.indices.view(ReadCounter))
        ReadCounter.read = 0
        try:
            extend(model, summary.states, summary.sums, counted, new, max_recompute=limit)
            refused.append(False)
        except NeighborhoodTooLarge:
            refused.append(True)
        assert ReadCounter.read <= limit
    assert refused[0]
    assert not refused[-1]


@given(cases(), st.randoms(use_true_random=False))
def test_the_order_of_neighbors_does_not_matter(case: Case, random: Any) -> None:
    summary = summarize(case.config, case.weights(), case.graph, dtype=np.float64)
    model = InferenceModel(case.config, case.weights(), np.float64)
    shuffled = [random.sample(ids, len(ids)) for ids in case.request.neighbors]
    first = as_new_nodes(case.graph, case.request)
    second = as_new_nodes(case.graph, Request(case.request.features, shuffled, case.request.edges, case.request.joint))
    with np.errstate(all="ignore"):
        left, right = (extend(model, summary.states, summary.sums, case.graph.adjacency, new) for new in (first, second))
    np.testing.assert_array_equal(left.logits, right.logits)
