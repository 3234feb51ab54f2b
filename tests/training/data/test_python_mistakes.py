"""Mistakes with Python objects and npz files: each gets a message that says what was found and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn.models import GCN
from torch_geometric.nn.models import SGFormer as PygSGFormer

from model_store import DataError, Store
from sgformer import Graph, ModelConfig, SGFormer
from tests.training.samples import user_arrays
from training import publish, save_graph
from training.__main__ import main
from training.data.user_data import read_user_data

X = torch.arange(12.0).reshape(4, 3)
BOTH = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
ONE_WAY = torch.tensor([[0, 1, 1, 2, 3], [1, 0, 2, 3, 3]])


def data(**changes: Any) -> Data:
    content: dict[str, Any] = {"x": X, "edge_index": BOTH, "y": torch.tensor([0, 1, 0, 1])} | changes
    return Data(**{name: value for name, value in content.items() if value is not None})


def friends(**attributes: Any) -> nx.Graph:
    graph = nx.Graph()
    graph.add_nodes_from(["ann", "bob"], age=30)
    graph.add_node("cy", **attributes)
    graph.add_edge("ann", "bob")
    return graph


MISTAKES: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "edges as rows": (
        lambda: np.array([[0, 1], [1, 2], [2, 3]]),
        {"x": np.ones((4, 2))},
        "the edges have shape (3, 2), expected (2, number of edges); transpose it",
    ),
    "an edge beyond the nodes": (
        lambda: data(edge_index=torch.tensor([[0], [4]])),
        {},
        "the graph: edge 0 is 0 - 4, expected node ids from 0 to 3",
    ),
    "edges of floats": (
        lambda: data(edge_index=BOTH.float()),
        {},
        "the graph: edge_index holds float32, expected integer node ids",
    ),
    "NaN in features": (
        lambda: data(x=X / X),
        {},
        "the graph: features hold NaN, infinity or more than 3.4e38 (row 0, column 0)",
    ),
    "features of one dimension": (
        lambda: data(x=X[:, 0]),
        {},
        "the graph: features have 1 dimension(s), expected 2 (rows x features)",
    ),
    "no edge_index": (lambda: data(edge_index=None), {}, "Data has no edge_index"),
    "a heterogeneous graph": (
        HeteroData,
        {},
        "the graph is a HeteroData, expected a Data of PyTorch Geometric, a graph of NetworkX, or a (2, E) array of edges",
    ),
    "a table": (
        lambda: {"source": [0], "target": [1]},
        {},
        "the graph is a dict, expected a Data of PyTorch Geometric, a graph of NetworkX, or a (2, E) array of edges",
    ),
    "weights of edges": (
        lambda: data(edge_weight=torch.tensor([0.5, 1, 1, 1])),
        {},
        "the graph: edge_weight has values of edges, which this model does not use: edges have no weights and no features; "
        "remove edge_weight to use the edges alone",
    ),
    "features of edges": (
        lambda: data(edge_attr=torch.rand(4, 2)),
        {},
        "the graph: edge_attr has values of edges, which this model does not use: edges have no weights and no features; "
        "remove edge_attr to use the edges alone",
    ),
    "several splits": (
        lambda: data(train_mask=torch.ones(4, 10, dtype=torch.bool)),
        {},
        "train_mask has 10 columns: choose a split, data.train_mask = data.train_mask[:, 0]",
    ),
    "the label of a graph": (
        lambda: data(y=torch.tensor([1])),
        {},
        "y has shape (1,), expected a row for each of 4 nodes",
    ),
    "ids twice": (
        data,
        {"node_ids": ["a", "b", "a", "c"]},
        "the graph: node_ids: rows 0 and 2 have the same id 'a'",
    ),
    "too few ids": (data, {"node_ids": ["a", "b"]}, "the graph: 2 node_ids for 4 nodes"),
    "ids of several types": (data, {"node_ids": [1, None, 2, 3]}, "node_ids: values of object, expected numbers or texts"),
    "texts without ids": (
        lambda: [["ann", "bob"], ["bob", "cy"]],
        {"x": np.ones((3, 2))},
        "the edges are texts, such as 'ann': give the ids of all nodes as node_ids",
    ),
    "an unknown id": (
        lambda: [["ann", "bob"], ["bob", "eve"]],
        {"x": np.ones((3, 2)), "node_ids": ["ann", "bob", "cy"]},
        "the edges name 'eve', which is not in node_ids",
    ),
    "a missing attribute": (friends, {"x": ["age"]}, "node 'cy' has no attribute 'age', expected a number for every node"),
    "an attribute of text": (
        lambda: friends(age="old"),
        {"x": ["age"]},
        "node 'cy' has 'age': 'old', expected a number for every node",
    ),
    "a label that no node has": (lambda: friends(age=1), {"x": ["age"], "y": "job"}, "no node has the attribute 'job'"),
    "weights in NetworkX": (
        lambda: nx.Graph([("a", "b", {"weight": 2})]),
        {"x": np.ones((2, 1))},
        "the edge attribute weight has values of edges, which this model does not use: edges have no weights and no "
        "features; remove the edge attribute weight to use the edges alone",
    ),
    "tuples as nodes": (
        lambda: nx.grid_2d_graph(2, 2),
        {"x": np.ones((4, 1))},
        "the nodes of the graph are no ids: expected all strings or all whole numbers; relabel them",
    ),
    "attributes without NetworkX": (
        data,
        {"x": ["age"]},
        "names of attributes are for graphs of NetworkX, expected arrays for x and y",
    ),
    "the number of nodes": (
        lambda: np.array([[0], [1]]),
        {},
        "the graph has neither x, nor node_ids or y: the number of its nodes is not known",
    ),
    "a class without a name": (
        data,
        {"y": ["red", "blue", "red", "grey"], "class_names": ["red", "blue"]},
        "y has 'grey', which is not in class_names",
    ),
    "texts and numbers as labels": (
        data,
        {"y": ["red", 1, "red", "grey"]},
        "y has values of int, str, expected all texts or all numbers",
    ),
    "too few rows": (data, {"split": [0, 1, 2]}, "split has shape (3,), expected a row for each of 4 nodes"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_graph_that_cannot_be_saved(tmp_path: Path, name: str) -> None:
    make, arguments, message = MISTAKES[name]
    with pytest.raises(DataError) as caught:
        save_graph(tmp_path / "graph.npz", make(), **arguments)
    assert str(caught.value) == message
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_torch_save_is_not_loaded(tmp_path: Path) -> None:
    for name in ("data.pt", "data.npz"):
        torch.save(data(), tmp_path / name)
        with pytest.raises(DataError) as caught:
            read_user_data(tmp_path / name)
        assert str(caught.value) == (
            f"{name} was written by torch.save: it is a pickle, which could run code and is never loaded; in Python, call "
            "training.save_graph('graph.npz', data) with the data that you saved, and use graph.npz"
        )


def test_an_npz_with_weights_of_edges_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "graph.npz", **user_arrays(edge_weight=np.linspace(0, 1, 40)))
    with pytest.raises(DataError) as caught:
        read_user_data(tmp_path / "graph.npz")
    assert str(caught.value) == (
        "graph.npz: edge_weight has values of edges, which this model does not use: edges have no weights and no features; "
        "remove edge_weight to use the edges alone"
    )


def pyg_model() -> Any:
    return PygSGFormer(3, 8, 2, trans_num_layers=1, gnn_num_layers=2).eval()


@pytest.mark.parametrize(
    ("model", "graph", "message"),
    [
        (
            lambda: GCN(3, 8, 2),
            data,
            "cannot publish a GCN, expected an SGFormer of this project or of PyTorch Geometric",
        ),
        (
            lambda: pyg_model().state_dict(),
            data,
            "cannot publish a OrderedDict, expected an SGFormer of this project or of PyTorch Geometric; "
            "sgformer.from_pyg(state_dict) makes one",
        ),
        (
            pyg_model,
            lambda: data(edge_index=ONE_WAY),
            "the edge list has 5 entries (2 in one direction only, 1 self-loops), but the served graph is undirected and "
            "has each edge once. If the weights were trained on these edges as they are, served answers differ from those "
            "of the original library. If they were trained on the undirected graph, or the difference is acceptable, say so "
            "with undirected=True",
        ),
        (
            pyg_model,
            lambda: Graph.build(X.numpy(), np.concatenate([BOTH, BOTH], axis=1)),
            "the edge list has 8 entries (4 repeated), but the served graph is undirected and has each edge once. If the "
            "weights were trained on these edges as they are, served answers differ from those of the original library. If "
            "they were trained on the undirected graph, or the difference is acceptable, say so with undirected=True",
        ),
        (
            pyg_model,
            lambda: X,
            "the graph is a Tensor, expected a Data of PyTorch Geometric, a graph of NetworkX, or a (2, E) array of edges",
        ),
        (
            pyg_model,
            lambda: data(edge_weight=torch.full((4,), 2.0)),
            "Data: edge_weight has values of edges, which this model does not use: edges have no weights and no features; "
            "remove edge_weight to use the edges alone",
        ),
    ],
)
def test_a_model_that_cannot_be_published(tmp_path: Path, model: Any, graph: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        publish(model(), graph(), store=tmp_path, name="mine")
    assert str(caught.value) == message


def test_a_directed_graph_is_published_when_told_and_never_in_silence(tmp_path: Path) -> None:
    directed = data(edge_index=ONE_WAY)
    publish(
        pyg_model(), directed, store=str(tmp_path), name="mine", node_ids=["a", "b", "c", "d"], undirected=True, onnx=False
    )
    manifest = Store(tmp_path).model("mine").manifest(1)
    assert manifest.dataset["given_edges"] == {"entries": 5, "one_way": 2, "repeated": 0, "self_loops": 1}
    own = SGFormer(ModelConfig(in_features=3, out_features=2, hidden=4)).eval()
    with pytest.warns(UserWarning, match="served as undirected; of its edges, 2 in one direction only, 1 self-loops"):
        publish(own, directed, store=tmp_path, name="mine", onnx=False)
    assert publish(own, data(), store=tmp_path, name="mine", class_names=["no", "yes"], onnx=False) == 3


@pytest.mark.parametrize("form", ["dense", "torch sparse", "scipy"])
def test_a_data_is_saved_and_read_again(tmp_path: Path, form: str) -> None:
    rng = np.random.default_rng(0)
    x = torch.tensor((rng.random((40, 5)) < 0.3).astype(np.float32))
    masks = {f"{part}_mask": torch.arange(40) % 3 == place for place, part in enumerate(("train", "val", "test"))}
    edges = torch.tensor(rng.integers(0, 40, (2, 80)))
    saved = Data(
        x=x.to_sparse() if form == "torch sparse" else x, edge_index=edges, y=torch.arange(40)[:, None] % 3, **masks
    )
    features = {"x": scipy.sparse.csr_matrix(x.numpy())} if form == "scipy" else {}
    save_graph(str(tmp_path / "graph.npz"), saved, **features, class_names=["a", "b", "c"])
    graph = read_user_data(tmp_path / "graph.npz")
    rows = graph.graph.features
    np.testing.assert_array_equal(rows.toarray() if form != "dense" else rows, x.numpy())  # type: ignore[union-attr]
    np.testing.assert_array_equal(graph.split, np.arange(40) % 3)
    np.testing.assert_array_equal(graph.labels, np.arange(40) % 3)
    assert graph.class_names == ("a", "b", "c")
    given = graph.graph.adjacency.edge_list
    assert given is not None
    assert given.entries == 80


def test_a_networkx_graph_is_saved_with_its_attributes(tmp_path: Path) -> None:
    club = nx.karate_club_graph()
    for _, _, attributes in club.edges(data=True):
        del attributes["weight"]
    for node, attributes in club.nodes(data=True):
        attributes["number"] = node % 5
    del club.nodes[3]["club"]
    save_graph(tmp_path / "graph.npz", club, x=["number"], y="club")
    graph = read_user_data(tmp_path / "graph.npz")
    assert (graph.graph.num_nodes, graph.graph.num_edges, graph.class_names) == (34, 78, ("Mr. Hi", "Officer"))
    assert graph.labels[3] == -1
    given = graph.graph.adjacency.edge_list
    assert given is not None
    assert given.symmetric
    directed = nx.DiGraph([("a", "b"), ("b", "c"), ("c", "b"), ("c", "c")])
    save_graph(tmp_path / "directed.npz", directed, x=np.ones((3, 1)), y=[0, 1, 0])
    with np.load(tmp_path / "directed.npz") as file:
        assert file["edge_index"].tolist() == [[0, 1, 2, 2], [1, 2, 1, 2]]
        assert file["node_ids"].tolist() == ["a", "b", "c"]


def test_an_edge_list_of_ids_is_saved(tmp_path: Path) -> None:
    ids = [f"n{number}" for number in range(20)]
    save_graph(tmp_path / "graph.npz", [["n1", "n2"], ["n19", "n2"]], x=np.eye(20), y=np.arange(20) % 2, node_ids=ids)
    graph = read_user_data(tmp_path / "graph.npz").graph
    assert graph.adjacency.neighbors(np.array([19])).tolist() == [1]
    assert graph.num_edges == 1


@pytest.mark.parametrize("make", [list, tuple, np.array])
def test_labels_that_are_texts_become_classes(tmp_path: Path, make: Any) -> None:
    labels = make(["red", "blue"] * 10)
    save_graph(tmp_path / "graph.npz", [[0, 1], [1, 2]], x=np.eye(20), y=labels)
    graph = read_user_data(tmp_path / "graph.npz")
    assert graph.class_names == ("blue", "red")
    assert graph.labels.tolist() == [1, 0] * 10
    save_graph(tmp_path / "graph.npz", [[0, 1], [1, 2]], x=np.eye(20), y=labels, class_names=("red", "green", "blue"))
    graph = read_user_data(tmp_path / "graph.npz")
    assert graph.class_names == ("red", "green", "blue")
    assert graph.labels.tolist() == [0, 2] * 10


def test_none_is_no_label(tmp_path: Path) -> None:
    save_graph(tmp_path / "graph.npz", [[0, 1], [1, 2]], x=np.eye(20), y=[None, "red", "blue", "blue"] * 5)
    assert read_user_data(tmp_path / "graph.npz").labels.tolist() == [-1, 1, 0, 0] * 5


def test_the_example_writes_files_that_training_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[3] / "examples" / "save_graph.py"
    command = [sys.executable, "-W", "error", "-W", "ignore:`torch.jit.script`", str(example), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(example.parents[1])}
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    for line in result.stdout.splitlines():
        assert main(line.split()[1:]) == 0
        assert capsys.readouterr().out.endswith("\ntraining would start\n")
    assert len(result.stdout.splitlines()) == 3


def test_arrays_that_are_not_read_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "graph.npz", **user_arrays(splits=np.zeros((3, 20)), time=np.arange(20)))
    assert main(["check", str(tmp_path / "graph.npz")]) == 0
    assert capsys.readouterr().err == "graph.npz: not read: splits, time\n"
    assert read_user_data(tmp_path / "graph.npz").notes == ("graph.npz: not read: splits, time",)
