"""Reads `graph.npz`, the graph of a user. Labels and splits, which are in the same file, belong to `training`.

x                                     (N, D) features, or CSR parts: x_data, x_indices, x_indptr, x_shape
edge_index                            (2, E) node numbers
node_ids                              optional: one id per node, whole numbers or strings
class_names                           optional: strings
"""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.errors import DataError
from model_store.format.node_ids import NodeIds
from sgformer import Graph, GraphError, SparseRows

_SPARSE = ("x_data", "x_indices", "x_indptr", "x_shape")


@dataclass(frozen=True)
class GraphFile:
    graph: Graph
    node_ids: NodeIds | None
    class_names: tuple[str, ...] | None


def read_graph_file(path: Path) -> GraphFile:
    """Reads the graph of an npz file. Refuses pickles and object arrays.

    Raises:
        DataError: names the array and what is wrong with it.
    """
    arrays = read_arrays(path, {"x", *_SPARSE, "edge_index", "node_ids", "class_names"})
    if "edge_index" not in arrays:
        raise DataError(f"{path.name} has no array edge_index")
    try:
        graph = Graph.build(_features(path, arrays), arrays["edge_index"])
    except GraphError as error:
        raise DataError(f"{path.name}: {error}") from error
    ids = NodeIds.build(arrays["node_ids"]) if "node_ids" in arrays else None
    if ids is not None and len(ids.arrays[0]) != graph.num_nodes:
        raise DataError(f"{path.name}: {len(ids.arrays[0])} node_ids for {graph.num_nodes} nodes")
    return GraphFile(graph, ids, _class_names(arrays.get("class_names")))


def read_arrays(path: Path, names: set[str] | None) -> dict[str, NDArray[Any]]:
    """Returns the named arrays that are in the file; all arrays if `names` is None."""
    try:
        with path.open("rb") as stream:  # numpy would not close a file that it cannot read
            if not stream.peek(6).startswith((b"PK", b"\x93NUMPY")):  # numpy would treat it as a pickle
                raise DataError(f"{path.name} is not an npz file (numpy.savez)")
            file = np.load(stream, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise DataError(f"{path.name} holds a single array, expected an npz file with named arrays")
            return {name: file[name] for name in file.files if names is None or name in names}
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except (OSError, ValueError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError) as error:
        raise DataError(f"{path.name} is not an npz file of plain arrays: {error}") from error


def _features(path: Path, arrays: dict[str, NDArray[Any]]) -> Any:
    sparse = [name for name in _SPARSE if name in arrays]
    if "x" in arrays and not sparse:
        return arrays["x"]
    if "x" in arrays or len(sparse) != len(_SPARSE):
        present = ", ".join(name for name in ("x", *_SPARSE) if name in arrays) or "neither"
        raise DataError(f"{path.name} needs x, or all of {', '.join(_SPARSE)}; it has {present}")
    shape, indptr = arrays["x_shape"], arrays["x_indptr"]
    if shape.shape != (2,) or shape.dtype.kind not in "iu" or not 0 < shape[1] <= np.iinfo(np.int32).max:
        raise DataError(f"{path.name}: x_shape is {shape.tolist()}, expected the numbers of rows and columns")
    if indptr.ndim != 1 or len(indptr) != shape[0] + 1:
        raise DataError(f"{path.name}: x_shape says {shape[0]} rows, x_indptr has shape {indptr.shape}")
    return SparseRows(indptr, arrays["x_indices"], arrays["x_data"], int(shape[1]))


def _class_names(names: NDArray[Any] | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    if names.ndim != 1 or names.dtype.kind not in "UT":
        raise DataError(f"class_names are {names.dtype} with {names.ndim} dimension(s), expected a list of strings")
    return tuple(str(name) for name in names)
