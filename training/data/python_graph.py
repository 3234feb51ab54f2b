"""Graphs of other Python libraries as the arrays of `graph.npz`: PyTorch Geometric's `Data`, NetworkX, and edge lists.

Nothing is dropped silently: the file keeps directions and repeats of edges, which `sgf-train check` counts. Weights of edges
are refused, because the model does not use them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from model_store import DataError
from model_store.publish.graph_file import graph_of_arrays
from model_store.structural import feature_maker
from sgformer import GraphError
from sgformer.edge_list import refuse_edge_values

Arrays = dict[str, NDArray[Any]]
MASKS = ("train_mask", "val_mask", "test_mask")
EXPECTED = "a Data of PyTorch Geometric, a graph of NetworkX, or a (2, E) array of edges"


def save_graph(
    path: Path | str,
    graph: Any,
    *,
    x: Any = None,
    y: Any = None,
    node_ids: Any = None,
    class_names: Iterable[str] | None = None,
    split: Any = None,
) -> None:
    """Writes a graph as `graph.npz`, which `sgf-train --data` reads.

    Args:
        path: the file to write, which must end in .npz.
        graph: PyTorch Geometric's `Data`, a graph of NetworkX, or a (2, E) array of edges. The array has row numbers, or
            ids if `node_ids` is given.
        x: the features: an (N, D) array or scipy sparse matrix; for NetworkX also a list of names of node attributes.
        y: the labels: numbers as in docs/own_data.md, or a list of class names in which None means no label; for NetworkX
            also the name of a node attribute.
        node_ids: one id per node, strings or whole numbers; by default the nodes of NetworkX, else row numbers.
        class_names: the names of classes 0, 1, ...; by default, if the labels are texts, the different texts in order.
        split: per node 0 (train), 1 (validation), 2 (test) or -1 (none); by default the masks of a `Data`.

    Raises:
        DataError: says what was found and what was expected; no file is written.
    """
    path = Path(path)
    if path.suffix != ".npz":
        raise DataError(f"{path.name} must end in .npz")
    names = None if class_names is None else list(class_names)
    arrays = _source_arrays(graph, x, y, node_ids, names)
    arguments = {"node_ids": node_ids, "split": split}
    arrays |= {name: _array(name, value) for name, value in arguments.items() if value is not None}
    if y is not None and not isinstance(y, str):
        arrays |= _labels(y, names)
    if x is not None and not _is_names(x):
        arrays = {name: array for name, array in arrays.items() if not name.startswith("x")} | _feature_arrays(x)
    if names is not None:
        arrays["class_names"] = np.array(names)
    _check(arrays)
    temporary = path.with_name(f".{path.name}")
    with temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    temporary.replace(path)


def pyg_arrays(data: Any) -> Arrays:
    """The arrays of PyTorch Geometric's `Data`: x, edge_index, y and masks. Raises DataError."""
    if not hasattr(data, "edge_index") or type(data).__name__ == "HeteroData":
        raise DataError(f"the graph is a {type(data).__name__}, expected {EXPECTED}")
    if data.edge_index is None:
        other = "; it has adj_t: leave out the transform ToSparseTensor" if getattr(data, "adj_t", None) is not None else ""
        raise DataError(f"Data has no edge_index{other}")
    arrays = {"edge_index": _array("edge_index", data.edge_index)}
    for name in ("edge_weight", "edge_attr"):
        if (values := getattr(data, name, None)) is not None:
            arrays[name] = _array(name, values)
    if getattr(data, "x", None) is not None:
        arrays |= _feature_arrays(data.x)
    for name in ("y", *MASKS):
        if (values := getattr(data, name, None)) is not None:
            array = _array(name, values)
            arrays[name] = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
            if name != "y" and arrays[name].ndim == 2:
                raise DataError(f"{name} has {array.shape[1]} columns: choose a split, data.{name} = data.{name}[:, 0]")
    if not arrays.keys() & {"x", "x_shape", "y"}:
        arrays["node_ids"] = np.arange(int(data.num_nodes))  # no other array has the number of nodes
    return arrays


def _source_arrays(graph: Any, x: Any, y: Any, node_ids: Any, class_names: list[str] | None) -> Arrays:
    if hasattr(graph, "nodes") and hasattr(graph, "is_multigraph"):
        if node_ids is not None:
            raise DataError("node_ids: a graph of NetworkX has ids already: its nodes")
        return _networkx_arrays(graph, x, y, class_names)
    if _is_names(x) or isinstance(y, str):
        raise DataError("names of attributes are for graphs of NetworkX, expected arrays for x and y")
    if isinstance(graph, np.ndarray | list | tuple) or hasattr(graph, "is_sparse"):
        return _edge_list_arrays(graph, node_ids)
    return pyg_arrays(graph)


def _edge_list_arrays(edges: Any, node_ids: Any) -> Arrays:
    array = _array("the edges", edges)
    if array.ndim != 2 or array.shape[0] != 2:
        hint = "; transpose it" if array.ndim == 2 and array.shape[1] == 2 else ""
        raise DataError(f"the edges have shape {array.shape}, expected (2, number of edges){hint}")
    if node_ids is None:
        if array.dtype.kind in "UST":
            raise DataError(f"the edges are texts, such as {str(array[0, 0])!r}: give the ids of all nodes as node_ids")
        return {"edge_index": array}
    rows = {node: row for row, node in enumerate(_array("node_ids", node_ids).tolist())}
    return {"edge_index": np.array([[_row(rows, node) for node in ends] for ends in array.tolist()], dtype=np.int64)}


def _networkx_arrays(graph: Any, x: Any, y: Any, class_names: list[str] | None) -> Arrays:
    nodes = list(graph.nodes)
    rows = {node: row for row, node in enumerate(nodes)}
    weights = [weight for *_, weight in graph.edges(data="weight") if weight is not None]
    if weights:
        try:
            refuse_edge_values("the edge attribute weight", weights)
        except GraphError as error:
            raise DataError(str(error)) from error
    edges = np.array([(rows[left], rows[right]) for left, right in graph.edges()], dtype=np.int64).reshape(-1, 2).T
    if not graph.is_directed():
        edges = np.concatenate([edges, edges[::-1, edges[0] != edges[1]]], axis=1)
    arrays = {"edge_index": edges, "node_ids": _array("the nodes of the graph", nodes)}
    if len({type(node) for node in nodes}) > 1 or arrays["node_ids"].ndim != 1 or arrays["node_ids"].dtype.kind not in "iuU":
        raise DataError("the nodes of the graph are no ids: expected all strings or all whole numbers; relabel them")
    if _is_names(x):
        arrays["x"] = np.array([[_number(graph.nodes[node], node, name) for name in x] for node in nodes], dtype=np.float64)
    if isinstance(y, str):
        labels = [graph.nodes[node].get(y) for node in nodes]
        if not any(label is not None for label in labels):
            raise DataError(f"no node has the attribute {y!r}")
        arrays |= _label_arrays(labels, f"the node attribute {y!r}", class_names)
    return arrays


def _labels(y: Any, class_names: list[str] | None) -> Arrays:
    labels = y.tolist() if isinstance(y, np.ndarray) else y
    if isinstance(labels, list | tuple) and any(isinstance(label, str) for label in labels):
        return _label_arrays(list(labels), "y", class_names)
    return {"y": _array("y", y)}


def _label_arrays(labels: list[Any], subject: str, class_names: list[str] | None) -> Arrays:
    """Labels as `y`. Texts become classes, numbered in the order of `class_names`, by default sorted. None is no label."""
    types = {type(label) for label in labels if label is not None}
    if types == {str}:
        names = class_names or sorted({label for label in labels if label is not None})
        places = {label: place for place, label in enumerate(names)}
        if unknown := {label for label in labels if label is not None} - places.keys():
            raise DataError(f"{subject} has {min(unknown)!r}, which is not in class_names")
        return {"y": np.array([-1 if label is None else places[label] for label in labels]), "class_names": np.array(names)}
    if not all(issubclass(kind, int | float | np.number) for kind in types):
        kinds = ", ".join(sorted(kind.__name__ for kind in types))
        raise DataError(f"{subject} has values of {kinds}, expected all texts or all numbers")
    if all(issubclass(kind, int | np.integer) for kind in types):
        return {"y": np.array([-1 if label is None else label for label in labels], dtype=np.int64)}
    return {"y": np.array([np.nan if label is None else label for label in labels], dtype=np.float64)}


def _number(attributes: Mapping[str, Any], node: Any, name: str) -> float:
    value = attributes.get(name)
    if not isinstance(value, int | float | np.number):
        problem = f"has {name!r}: {value!r}" if name in attributes else f"has no attribute {name!r}"
        raise DataError(f"node {node!r} {problem}, expected a number for every node")
    return float(value)


def _row(rows: Mapping[Any, int], node: Any) -> int:
    if node not in rows:
        raise DataError(f"the edges name {node!r}, which is not in node_ids")
    return rows[node]


def _feature_arrays(x: Any) -> Arrays:
    if hasattr(x, "to_sparse_coo") and str(x.layout) != "torch.strided":
        entries = x.detach().cpu().to_sparse_coo().coalesce()
        x = sparse.csr_matrix((entries.values().numpy(), entries.indices().numpy()), shape=tuple(x.shape))
    if not sparse.issparse(x):
        return {"x": _array("x", x)}
    matrix = x.tocsr(copy=True)
    matrix.sum_duplicates()
    parts = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr, "shape": np.array(matrix.shape)}
    return {f"x_{part}": array for part, array in parts.items()}


def _array(name: str, values: Any) -> NDArray[Any]:
    """An array of numbers or texts from a tensor on any device, a list, or an array."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = (values.float() if str(values.dtype) == "torch.bfloat16" else values).numpy()
    try:
        array = np.asarray(values)
    except ValueError:
        raise DataError(f"{name}: lists of unequal lengths") from None
    if array.dtype.kind not in "fiubUST":
        raise DataError(f"{name}: values of {array.dtype}, expected numbers or texts")
    return array


def _is_names(x: Any) -> bool:
    return isinstance(x, list | tuple) and len(x) > 0 and all(isinstance(name, str) for name in x)


def _check(arrays: Arrays) -> None:
    """Raises DataError for a graph that `sgf-train` would not read. Labels are checked when they are used."""
    has_features = arrays.keys() & {"x", "x_shape"}
    count = graph_of_arrays(arrays, "the graph", None if has_features else feature_maker("degree")).graph.num_nodes
    for name in ("y", "split", *MASKS):
        if name in arrays and (not arrays[name].ndim or len(arrays[name]) != count):
            raise DataError(f"{name} has shape {arrays[name].shape}, expected a row for each of {count} nodes")
