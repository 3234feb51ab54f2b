from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from sgformer import Adjacency, Graph, GraphError, InferenceModel, NewNodes, SparseRows, summarize
from sgformer.edge_list import EdgeListCounts
from sgformer.features import column_statistics, row_normalised
from tests.sgformer.cases import Case, assert_close, cases, graphs


def test_edges_become_undirected_unique_and_loop_free() -> None:
    adjacency = Adjacency.from_edges([[0, 1, 1, 2, 0, 3], [1, 0, 1, 0, 1, 3]], num_nodes=5)
    assert list(adjacency.indptr) == [0, 2, 3, 4, 4, 4]
    assert list(adjacency.indices) == [1, 2, 0, 0]
    assert adjacency.num_edges == 2
    assert adjacency.indices.dtype == np.int32


@pytest.mark.parametrize(
    ("edges", "counts", "text"),
    [
        ([[0, 1, 1, 2, 0, 3], [1, 0, 1, 0, 1, 3]], (6, 1, 1, 2), "1 in one direction only, 1 repeated, 2 self-loops"),
        ([[0, 1, 2], [1, 2, 3]], (3, 3, 0, 0), "3 in one direction only"),
        ([[0, 1], [1, 0]], (2, 0, 0, 0), ""),
        ([[], []], (0, 0, 0, 0), ""),
    ],
)
def test_an_edge_list_is_counted_as_it_was_given(edges: Any, counts: tuple[int, ...], text: str) -> None:
    edge_list = Adjacency.from_edges(edges, num_nodes=5).edge_list
    assert edge_list == EdgeListCounts(*counts)
    assert str(edge_list) == text
    assert edge_list.symmetric == (text == "")


@given(graphs(sparse=False), st.data())
def test_the_counts_of_an_edge_list_add_up(graph: Graph, data: st.DataObject) -> None:
    size = data.draw(st.integers(0, 30))
    edges = np.array(
        data.draw(st.lists(st.integers(0, graph.num_nodes - 1), min_size=2 * size, max_size=2 * size)), dtype=int
    )
    adjacency = Adjacency.from_edges(edges.reshape(2, -1), graph.num_nodes)
    edge_list = adjacency.edge_list
    assert edge_list is not None
    pairs = [(left, right) for left, right in edges.reshape(2, -1).T.tolist() if left != right]
    assert edge_list.self_loops == size - len(pairs)
    assert edge_list.repeated == len(pairs) - len(set(pairs))
    assert edge_list.one_way == sum((right, left) not in pairs for left, right in set(pairs))


@given(graphs(sparse=False))
def test_all_constructors_give_the_same_adjacency(graph: Graph) -> None:
    dense = np.zeros((graph.num_nodes, graph.num_nodes))
    left, right = graph.adjacency.edge_index()
    dense[left, right] = 1
    np.testing.assert_array_equal(dense, dense.T)
    one_way = np.triu(dense) + np.eye(graph.num_nodes)
    for matrix in (dense, one_way, scipy.sparse.coo_matrix(one_way), scipy.sparse.csr_matrix(dense)):
        adjacency = Adjacency.from_matrix(matrix)
        np.testing.assert_array_equal(adjacency.indptr, graph.adjacency.indptr)
        np.testing.assert_array_equal(adjacency.indices, graph.adjacency.indices)


@given(graphs(sparse=False))
def test_linked_is_right_for_every_pair(graph: Graph) -> None:
    dense = np.zeros((graph.num_nodes, graph.num_nodes), dtype=bool)
    dense[tuple(graph.adjacency.edge_index())] = True
    left, right = np.divmod(np.arange(graph.num_nodes**2), graph.num_nodes)
    np.testing.assert_array_equal(graph.adjacency.linked(left, right), dense.reshape(-1))


def test_scipy_features_stay_sparse_and_duplicates_are_summed() -> None:
    matrix = scipy.sparse.coo_matrix(([1.0, 2.0, 3.0], ([0, 0, 2], [1, 1, 0])), shape=(3, 4))
    graph = Graph.build(matrix, np.empty((2, 0), dtype=np.int64))
    assert isinstance(graph.features, SparseRows)
    np.testing.assert_array_equal(graph.features.toarray(), matrix.toarray())
    np.testing.assert_array_equal(graph.features[1:3].toarray(), matrix.toarray()[1:3])


@given(graphs(sparse=True))
def test_sparse_and_dense_features_have_the_same_statistics(graph: Graph) -> None:
    assert isinstance(graph.features, SparseRows)
    dense = graph.features.toarray()
    for left, right in zip(column_statistics(graph.features), column_statistics(dense), strict=True):
        assert_close(left, right)
    normalised = row_normalised(graph.features)
    assert isinstance(normalised, SparseRows)
    assert_close(normalised.toarray(), np.asarray(row_normalised(dense)))


@pytest.mark.parametrize("sparse", [False, True])
def test_a_constant_column_has_scale_one(sparse: bool) -> None:
    rows: Any = np.full((1000, 1), 0.1)
    if sparse:
        rows = SparseRows(np.arange(1001), np.zeros(1000, dtype=np.int64), rows[:, 0], 1)
    mean, scale = column_statistics(rows)
    assert mean == pytest.approx(0.1)
    assert scale == 1


def test_the_scipy_matrix_of_the_caller_is_not_changed() -> None:
    matrix = scipy.sparse.csr_matrix(([1.0, 2.0], [1, 1], [0, 2, 2]), shape=(2, 3))
    graph = Graph.build(matrix, np.empty((2, 0), dtype=np.int64))
    assert matrix.nnz == 2
    assert isinstance(graph.features, SparseRows)
    assert graph.features.toarray()[0, 1] == 3
    new = NewNodes.build(matrix[:1], [[0]], num_nodes=2, num_features=3)
    assert isinstance(new.features, SparseRows)


def test_sparse_rows_refuse_a_slice_with_a_step() -> None:
    rows = SparseRows(np.array([0, 1, 2]), np.array([0, 1]), np.ones(2), 3)
    with pytest.raises(IndexError, match="not in steps of 2"):
        rows[::2]


@given(cases())
def test_permuting_the_nodes_permutes_the_answers(case: Case) -> None:
    order = np.random.default_rng(case.seed).permutation(case.graph.num_nodes)
    features = case.graph.features
    dense = features.toarray() if isinstance(features, SparseRows) else features
    place = np.argsort(order)
    moved = Graph.build(dense[order], place[case.graph.adjacency.edge_index()])
    plain = Graph.build(dense, case.graph.adjacency.edge_index())
    model = InferenceModel(case.config, case.weights(), np.float64)
    answers = []
    with np.errstate(all="ignore"):
        for graph in (plain, moved):
            summary = summarize(case.config, case.weights(), graph, dtype=np.float64)
            answers.append(model.known(summary.states, summary.sums, np.arange(graph.num_nodes)).logits)
    if np.isfinite(answers[0]).all() and np.abs(answers[0]).max() < 1e3:
        assert_close(answers[1], answers[0][order], tolerance=1e-8)


@given(graphs(sparse=False), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), max_size=12))
def test_adding_nodes_equals_building_with_all_edges(graph: Graph, links: list[tuple[int, int]]) -> None:
    count, total = 3, graph.num_nodes + 3
    edges = np.array([(graph.num_nodes + new, to % total) for new, to in links], dtype=np.int64).reshape(-1, 2).T
    grown = graph.adjacency.with_nodes(count, edges)
    built = Adjacency.from_edges(np.concatenate([graph.adjacency.edge_index(), edges], axis=1), total)
    np.testing.assert_array_equal(grown.indptr, built.indptr)
    np.testing.assert_array_equal(grown.indices, built.indices)
    assert grown.indices.dtype == built.indices.dtype


def test_every_added_edge_must_have_a_new_node() -> None:
    with pytest.raises(GraphError, match=r"edge 0 - 2 joins two known nodes, expected edges of new nodes \(3 and up\)"):
        Adjacency.from_edges([[0], [1]], 3).with_nodes(1, [[3, 0], [1, 2]])
