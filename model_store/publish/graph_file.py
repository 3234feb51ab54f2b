"""Reads `graph.npz`, the graph of a user. `labelled_file` reads the labels and the split, which are in the same file.

x                                     (N, D) features, or CSR parts: x_data, x_indices, x_indptr, x_shape
edge_index                            (2, E) node numbers
node_ids                              optional: one id per node, whole numbers or strings
class_names                           optional: strings

Other arrays of edges (edge_weight, edge_attr) are refused unless they are all 1: the model does not use them.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.errors import DataError
from model_store.format.node_ids import NodeIds
from sgformer import Adjacency, Graph, GraphError, SparseRows
from sgformer.edge_list import refuse_edge_values

MakeFeatures = Callable[[Adjacency, NodeIds | None], NDArray[Any]]
_SPARSE = ("x_data", "x_indices", "x_indptr", "x_shape")
GRAPH_ARRAYS = {"x", *_SPARSE, "edge_index", "node_ids", "class_names"}


@dataclass(frozen=True)
class GraphFile:
    graph: Graph
    node_ids: NodeIds | None
    class_names: tuple[str, ...] | None


class NoFeatures(DataError): ...  # noqa: N818  # names a condition


def read_graph_file(path: Path, make_features: MakeFeatures | None = None) -> GraphFile:
    """Reads the graph of an npz file. Refuses pickles and object arrays.

    Args:
        make_features: makes the features of a graph without features; a file with features is then refused.

    Raises:
        NoFeatures: the file has no features, and `make_features` is None.
        DataError: names the array and what is wrong with it.
    """
    arrays = read_arrays(path, {*GRAPH_ARRAYS, "edge_*"} | ({"y"} if make_features else set()))
    if "edge_index" not in arrays:
        raise DataError(f"{path.name} has no array edge_index; it has {', '.join(array_names(path)) or 'no arrays'}")
    return graph_of_arrays(arrays, path.name, make_features)


def graph_of_arrays(arrays: Mapping[str, NDArray[Any]], source: str, make_features: MakeFeatures | None = None) -> GraphFile:
    """Builds the graph from arrays that are named as in the file; ignores other arrays. Raises DataError."""
    if "edge_index" not in arrays:
        raise DataError(f"{source} has no array edge_index")
    try:
        for name in arrays:
            if name.startswith("edge_") and name != "edge_index":
                refuse_edge_values(name, arrays[name])
        ids = _ids(source, arrays)
        graph = _build(source, arrays, make_features, ids)
    except GraphError as error:
        raise DataError(f"{source}: {error}") from error
    if ids is not None and len(ids.arrays[0]) != graph.num_nodes:
        raise DataError(f"{source}: {len(ids.arrays[0])} node_ids for {graph.num_nodes} nodes")
    return GraphFile(graph, ids, class_names_of(arrays.get("class_names")))


def read_arrays(path: Path, names: set[str] | None) -> dict[str, NDArray[Any]]:
    """Returns the named arrays that are in the file; all arrays if `names` is None. A name may be a pattern: edge_*."""
    try:
        with path.open("rb") as stream:  # numpy would not close a file that it cannot read
            if not stream.peek(6).startswith((b"PK", b"\x93NUMPY")):  # numpy would treat it as a pickle
                raise DataError(f"{path.name} is not an npz file (numpy.savez)")
            file = np.load(stream, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise DataError(f"{path.name} holds a single array, expected an npz file with named arrays")
            if any(name.endswith("/data.pkl") for name in file.files):
                raise DataError(
                    f"{path.name} was written by torch.save: it is a pickle, which could run code and is never loaded; in "
                    "Python, call training.save_graph('graph.npz', data) with the data that you saved, and use graph.npz"
                )
            return {
                name: plain_array(path, name, partial(file.__getitem__, name))
                for name in file.files
                if names is None or any(fnmatchcase(name, pattern) for pattern in names)
            }
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except (OSError, ValueError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError) as error:
        raise DataError(f"{path.name} is not an npz file of plain arrays: {error}") from error


def plain_array(path: Path, name: str, load: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """The array that `load` returns. Raises DataError if it holds Python objects."""
    try:
        return load()
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise DataError(
            f"{path.name}: {name} holds Python objects, which are pickles and never loaded: save it as an array of numbers "
            "or of texts, with a number or a text in every place"
        ) from None


def array_names(path: Path) -> list[str]:
    """The names of the arrays of a file, which `read_arrays` has accepted before."""
    with np.load(path, allow_pickle=False) as file:
        return list(file.files)


def _ids(source: str, arrays: Mapping[str, NDArray[Any]]) -> NodeIds | None:
    try:
        return NodeIds.build(arrays["node_ids"]) if "node_ids" in arrays else None
    except DataError as error:
        raise DataError(f"{source}: {error}") from error


def _build(
    source: str, arrays: Mapping[str, NDArray[Any]], make_features: MakeFeatures | None, ids: NodeIds | None
) -> Graph:
    if make_features is None:
        return Graph.build(features_of(source, arrays), arrays["edge_index"])
    if arrays.keys() & {"x", *_SPARSE}:
        raise DataError(f"{source} has features: features of the structure are for graphs without features")
    counts = [len(arrays[name]) for name in ("node_ids", "y") if name in arrays and arrays[name].ndim]
    if not counts:
        raise DataError(f"{source} has neither x, nor node_ids or y: the number of its nodes is not known")
    adjacency = Adjacency.from_edges(arrays["edge_index"], counts[0])
    return Graph.build(make_features(adjacency, ids), arrays["edge_index"])


def features_of(source: str, arrays: Mapping[str, NDArray[Any]]) -> Any:
    sparse = [name for name in _SPARSE if name in arrays]
    if "x" in arrays and not sparse:
        return arrays["x"]
    if "x" not in arrays and not sparse:
        raise NoFeatures(f"{source} has no features: neither x nor {', '.join(_SPARSE)}")
    if "x" in arrays or len(sparse) != len(_SPARSE):
        present = ", ".join(name for name in ("x", *_SPARSE) if name in arrays)
        raise DataError(f"{source} needs x, or all of {', '.join(_SPARSE)}; it has {present}")
    shape, indptr = arrays["x_shape"], arrays["x_indptr"]
    if shape.shape != (2,) or shape.dtype.kind not in "iu" or not 0 < shape[1] <= np.iinfo(np.int32).max:
        raise DataError(f"{source}: x_shape is {shape.tolist()}, expected the numbers of rows and columns")
    if indptr.ndim != 1 or len(indptr) != shape[0] + 1:
        raise DataError(f"{source}: x_shape says {shape[0]} rows, x_indptr has shape {indptr.shape}")
    return SparseRows(indptr, arrays["x_indices"], arrays["x_data"], int(shape[1]))


def class_names_of(names: NDArray[Any] | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    if names.ndim != 1 or names.dtype.kind not in "UT":
        raise DataError(f"class_names are {names.dtype} with {names.ndim} dimension(s), expected a list of strings")
    return tuple(str(name) for name in names)
