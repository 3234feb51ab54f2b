"""Invalid input raises an error that says what was found and what was expected. Nothing is clipped or dropped silently."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from sgformer import (
    Adjacency,
    ConfigError,
    Graph,
    GraphError,
    InferenceModel,
    ModelConfig,
    NewNodeError,
    NewNodes,
    SGFormer,
    SparseRows,
    Summary,
    UnknownNodeError,
    WeightsError,
    extend,
    summarize,
)
from sgformer.features import MixedRows
from tests.sgformer.cases import random_weights

X = np.ones((4, 3))
NO_EDGES = np.empty((2, 0), dtype=np.int64)


def with_value(value: float) -> np.ndarray:
    features = X.copy()
    features[2, 1] = value
    return features


@pytest.mark.parametrize(
    ("features", "edges", "message"),
    [
        (with_value(np.nan), NO_EDGES, r"NaN, infinity or more than 3.4e38 \(row 2, column 1\)"),
        (with_value(np.inf), NO_EDGES, r"NaN, infinity or more than 3.4e38 \(row 2, column 1\)"),
        (with_value(1e39), NO_EDGES, r"more than 3.4e38 \(row 2, column 1\)"),
        ([[1.0, 2.0], [1.0]], NO_EDGES, "features are lists of unequal lengths"),
        (X, [[0, 1], [1]], "edge_index rows are lists of unequal lengths"),
        (np.ones(4), NO_EDGES, r"1 dimension\(s\), expected 2"),
        (np.array([["a", "b"], ["c", "d"]]), NO_EDGES, "expected numbers"),
        (np.array([[None, 1], [1, 2]]), NO_EDGES, "expected numbers"),
        (np.ones((0, 3)), NO_EDGES, "at least 2 nodes, got 0"),
        (np.ones((1, 3)), NO_EDGES, "at least 2 nodes, got 1"),
        (np.ones((4, 0)), NO_EDGES, "at least 1 feature per node, got 0"),
        (X, [[0, 1], [1, 4]], r"edge 1 is 1 - 4, expected node ids from 0 to 3"),
        (X, [[0, -1], [1, 2]], r"edge 1 is -1 - 2, expected node ids from 0 to 3"),
        (X, [[0.0, 1.0], [1.0, 2.0]], "float64, expected integer node ids"),
        (X, [[True, False], [False, True]], "bool, expected integer node ids"),
        (X, [[0, 1, 2]], r"shape \(1, 3\), expected \(2, number of edges\)"),
        (X, [0, 1], r"shape \(2,\), expected \(2, number of edges\)"),
        (X, [[0, 1], [1, 2], [2, 3]], r"shape \(3, 2\), expected \(2, number of edges\)"),
    ],
)
def test_graph(features: Any, edges: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        Graph.build(features, edges)


@pytest.mark.parametrize("matrix", [np.ones((4, 3)), np.ones(4), scipy.sparse.csr_matrix((3, 4)), [[1, 0]]])
def test_adjacency_matrix_that_is_not_square(matrix: Any) -> None:
    with pytest.raises(GraphError, match="must be square, got shape"):
        Adjacency.from_matrix(matrix)


def test_adjacency_matrix_that_is_not_finite() -> None:
    matrix = np.zeros((3, 3))
    matrix[1, 2] = np.nan
    for kind in (matrix, scipy.sparse.csr_matrix(matrix)):
        with pytest.raises(GraphError, match="finite numbers"):
            Adjacency.from_matrix(kind)


def test_adjacency_matrix_with_weights() -> None:
    matrix = np.array([[0, 0.5], [0.5, 0]])
    for kind in (matrix, scipy.sparse.csr_matrix(matrix)):
        with pytest.raises(
            GraphError, match=r"must hold 0 and 1, got 0.5: edges have no weights in this model; pass matrix != 0"
        ):
            Adjacency.from_matrix(kind)
        assert Adjacency.from_matrix(kind != 0).num_edges == 1


def test_new_edges_of_floats_are_not_truncated() -> None:
    with pytest.raises(GraphError, match="float64, expected integer node ids"):
        Graph.build(X, NO_EDGES).with_nodes(np.ones((1, 3)), [[4.0], [1.9]])


def test_adjacency_matrix_of_another_size() -> None:
    with pytest.raises(GraphError, match="4 feature rows for an adjacency matrix of 5 nodes"):
        Graph.from_matrix(X, np.eye(5))


def sparse(indptr: Any, indices: Any, values: Any) -> SparseRows:
    return SparseRows(np.array(indptr), np.array(indices), np.array(values), 3)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (sparse([0, 1, 2], [0, 3], [1.0, 1.0]), "column 3 is out of range, expected 0 to 2"),
        (sparse([0, 1, 2], [0, -1], [1.0, 1.0]), "column -1 is out of range"),
        (sparse([0, 2, 1], [0, 1], [1.0, 1.0]), r"indptr must rise from 0 to the number of entries \(2\)"),
        (sparse([1, 2], [0, 1], [1.0, 1.0]), "indptr must rise"),
        (sparse([], [0, 1], [1.0, 1.0]), "indptr"),
        (SparseRows(np.array([0, 2, 1], dtype=np.uint64), np.array([0, 1]), np.ones(2), 3), "indptr must rise"),
        (SparseRows([0, 1, 2], [0, 7], [1.0, 1.0], 3), "column 7 is out of range"),
        (sparse([0, 1, 2], [0.0, 1.0], [1.0, 1.0]), "indices is float64"),
        (sparse([0, 1, 2], [0, 1], [1.0]), r"\(1,\) values of float64 for \(2,\) indices"),
        (sparse([0, 2, 2], [1, 1], [1.0, 1.0]), "row 0 names column 1 twice"),
        (sparse([0, 1, 2], [0, 2], [1.0, np.nan]), r"NaN, infinity or more than 3.4e38 \(row 1, column 2\)"),
    ],
)
def test_sparse_features(rows: SparseRows, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        Graph.build(rows, NO_EDGES)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alpha": 1.1}, r"alpha must lie in \[0, 1\], got 1.1"),
        ({"alpha": -0.1}, r"alpha must lie in \[0, 1\]"),
        ({"alpha": float("nan")}, r"alpha must lie in \[0, 1\]"),
        ({"alpha": "half"}, r"alpha must lie in \[0, 1\]"),
        ({"in_features": 0}, "in_features must be a whole number of at least 1, got 0"),
        ({"hidden": 8.0}, "hidden must be a whole number of at least 1, got 8.0"),
        ({"heads": True}, "heads must be a whole number"),
        ({"layers": -1}, "layers must be a whole number of at least 0"),
        ({"attention_residual": 1.5}, r"attention_residual must lie in \[0, 1\]"),
        ({"gnn_dropout": 1}, r"gnn_dropout must lie in \[0, 1\)"),
        ({"normalization": "softmax"}, "normalization must be one of frobenius, row, got 'softmax'"),
        ({"value_map": 1}, "value_map must be true or false"),
        ({"gnn_input": "features", "layers": 0}, "needs at least one GCN layer"),
        ({"gnn_input": "features", "gnn_residual": True}, "needs gnn_residual=False"),
        ({"gnn_input": "features", "gnn_weight": False}, "needs gnn_weight=True"),
        ({"gnn_init": True, "gnn_weight": False}, "gnn_init .* needs gnn_weight"),
        ({"gnn_residual": True, "gnn_layer_residual": True}, "gnn_layer_residual takes the place of gnn_residual"),
        ({"gnn_layer_norm": True}, "gnn_layer_norm takes the place of the batch norms: it needs gnn_batch_norm=False"),
    ],
)
def test_config(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelConfig(**({"in_features": 3, "out_features": 2} | changes))


def test_config_from_a_dictionary_rejects_unknown_and_missing_names() -> None:
    config = ModelConfig(in_features=3, out_features=2, attention_residual=None)
    assert ModelConfig.from_dict(config.to_dict()) == config
    with pytest.raises(ConfigError, match=r"unknown model setting\(s\): depth"):
        ModelConfig.from_dict(config.to_dict() | {"depth": 3})
    with pytest.raises(ConfigError, match=r"missing model setting\(s\): alpha, heads"):
        ModelConfig.from_dict({k: v for k, v in config.to_dict().items() if k not in ("alpha", "heads")})


def test_a_setting_that_older_snapshots_do_not_have_is_stored_only_if_it_is_used() -> None:
    config = ModelConfig(in_features=3, out_features=2, gnn_batch_norm=False)
    assert not {"gnn_layer_norm", "gnn_layer_residual"} & set(config.to_dict()), "the hash of an older manifest stays"
    normed = replace(config, gnn_layer_norm=True)
    assert ModelConfig.from_dict(normed.to_dict()) == normed != config


@pytest.mark.parametrize(
    ("features", "neighbors", "options", "message"),
    [
        (np.ones((1, 2)), [[]], {}, "features are 2 wide, expected 3"),
        (np.full((2, 3), np.nan), [[], []], {}, r"new node 0: features hold NaN, infinity .* \(row 0, column 0\)"),
        (np.ones((1, 3)), [[], []], {}, r"1 feature row\(s\) for 2 neighbour list\(s\)"),
        (np.ones((0, 3)), [], {}, "the request has no new node"),
        (np.ones((2, 3)), [[0], [4]], {}, "new node 1: neighbour 4 is not in the graph, expected ids from 0 to 3"),
        (np.ones((1, 3)), [[-1]], {}, "new node 0: neighbour -1 is not in the graph"),
        (np.ones((1, 3)), [[1.0]], {}, "new node 0: neighbours are float64"),
        (np.ones((1, 3)), [[True]], {}, "new node 0: neighbours are bool"),
        (np.ones((1, 3)), [[[1], [2, 3]]], {}, "new node 0: neighbours are lists of unequal lengths"),
        (np.ones((1, 3)), [["1"]], {}, "expected a list of integer node ids"),
        (np.ones((1, 3)), [[[1], [2]]], {}, r"2 dimension\(s\)"),
        (np.ones((2, 3)), [[], []], {"edges": [(0, 1)]}, "edges between new nodes need joint mode"),
        (np.ones((2, 3)), [[], []], {"edges": [(0, 2)], "joint": True}, "edge 0 - 2 names no new node, .* 0 to 1"),
        (np.ones((2, 3)), [[], []], {"edges": [(1, 1)], "joint": True}, "new node 1: an edge to itself"),
        (np.ones((2, 3)), [[], []], {"edges": [(0.0, 1.0)], "joint": True}, "expected pairs of new-node positions"),
        (np.ones((2, 3)), [[], []], {"edges": [(0, 1, 1)], "joint": True}, "expected pairs of new-node positions"),
    ],
)
def test_new_nodes(features: Any, neighbors: Any, options: Any, message: str) -> None:
    with pytest.raises(NewNodeError, match=message):
        NewNodes.build(features, neighbors, num_nodes=4, num_features=3, **options)


def test_repeated_neighbors_count_once() -> None:
    new = NewNodes.build(np.ones((1, 3)), [[2, 1, 2, 2]], num_nodes=4, num_features=3)
    assert list(new.neighbors) == [1, 2]


def test_the_error_names_the_new_node_with_invalid_mixed_features() -> None:
    bad = with_value(np.nan)  # in the third of four dense rows
    rows = MixedRows(bad, sparse([0, 1], [0], [1.0]), np.array([True, False, False, False, False]))
    with pytest.raises(NewNodeError) as caught:
        NewNodes.build(rows, [[]] * 5, num_nodes=4, num_features=3)
    assert caught.value.item == 3


def test_the_error_names_the_new_node_with_invalid_features() -> None:
    with pytest.raises(NewNodeError) as caught:
        NewNodes.build(with_value(np.nan), [[]] * 4, num_nodes=4, num_features=3)
    assert caught.value.item == 2


@pytest.fixture(scope="module")
def served() -> tuple[InferenceModel, Summary, Graph]:
    config = ModelConfig(in_features=3, out_features=2, hidden=4, normalization="row")
    graph = Graph.build(np.random.default_rng(0).normal(size=(4, 3)), [[0, 1], [1, 2]])
    weights = random_weights(config, 0)
    return InferenceModel(config, weights), summarize(config, weights, graph), graph


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([-1], "node -1 is not in the graph, expected ids from 0 to 3"),
        ([0, 4], "node 4 is not in the graph"),
        ([True, False, True, False], "nodes are bool"),
        ([1.0], "nodes are float64"),
        ([[1]], r"2 dimension\(s\)"),
    ],
)
def test_known_nodes(served: Any, nodes: Any, message: str) -> None:
    model, summary, _ = served
    with pytest.raises(UnknownNodeError, match=message):
        model.known(summary.states, summary.sums, np.array(nodes))


def test_an_empty_list_of_known_nodes_has_empty_answers(served: Any) -> None:
    model, summary, _ = served
    assert model.known(summary.states, summary.sums, np.array([], dtype=np.int64)).logits.shape == (0, 2)


def test_a_request_validated_for_another_graph_is_refused(served: Any) -> None:
    """Otherwise its ids would be read as ids of the next scenario in the batch."""
    model, summary, graph = served
    other = NewNodes.build(np.ones((1, 3)), [[7]], num_nodes=9, num_features=3)
    with pytest.raises(NewNodeError, match="validated for a graph of 9 nodes, this graph has 4"):
        extend(model, summary.states, summary.sums, graph.adjacency, other)
    wide = NewNodes.build(np.ones((1, 5)), [[1]], num_nodes=4, num_features=5)
    with pytest.raises(NewNodeError, match="features are 5 wide, this model expects 3"):
        extend(model, summary.states, summary.sums, graph.adjacency, wide)
    with pytest.raises(NewNodeError, match="different sizes"):
        NewNodes.merged([other, NewNodes.build(np.ones((1, 3)), [[1]], num_nodes=4, num_features=3)])


def test_an_unknown_mode_is_refused(served: Any) -> None:
    model, summary, graph = served
    new = NewNodes.build(np.ones((1, 3)), [[1]], num_nodes=4, num_features=3)
    with pytest.raises(NewNodeError, match="mode is 'Exact', expected exact or frozen"):
        extend(model, summary.states, summary.sums, graph.adjacency, new, "Exact")


@pytest.mark.parametrize(("value", "problem"), [(np.nan, "holds NaN or infinity"), (1, "holds int64, expected floats")])
def test_the_error_names_weights_that_are_not_finite_floats(value: Any, problem: str) -> None:
    config = ModelConfig(in_features=3, out_features=2, hidden=4)
    with pytest.raises(WeightsError, match=rf"output\.bias {problem}"):
        InferenceModel(config, random_weights(config, 0) | {"output.bias": np.array([value, value])})


def test_the_error_names_all_weights_that_do_not_fit() -> None:
    config = ModelConfig(in_features=3, out_features=2, hidden=4, layers=1)
    weights = random_weights(config, 0)
    del weights["input.bias"]
    weights["surprise"] = np.zeros(1)
    weights["output.weight"] = np.zeros((2, 5))
    expected = r"missing input\.bias \(4,\); unknown surprise; output\.weight has shape \(2, 5\), expected \(2, 4\)"
    with pytest.raises(WeightsError, match=expected):
        InferenceModel(config, weights)
    model = SGFormer(config)
    before = {name: array.copy() for name, array in model.weights().items()}
    with pytest.raises(WeightsError, match=expected):
        model.load_weights(weights)
    for name, array in model.weights().items():
        np.testing.assert_array_equal(array, before[name])


def test_a_graph_of_another_width_is_refused() -> None:
    config = ModelConfig(in_features=5, out_features=2)
    graph = Graph.build(X, NO_EDGES)
    with pytest.raises(GraphError, match="features are 3 wide, this model expects 5"):
        SGFormer(config).prepare(graph)
    with pytest.raises(GraphError, match="features are 3 wide, this model expects 5"):
        summarize(config, random_weights(config, 0), graph)
