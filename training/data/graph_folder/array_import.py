"""Imports arrays that are named as in `graph.npz` and mapped from files, block by block."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store import DataError, NodeIds
from model_store.publish.graph_file import (
    GRAPH_ARRAYS,
    NoFeatures,
    array_names,
    class_names_of,
    features_of,
    plain_array,
    read_arrays,
)
from model_store.publish.labelled_file import LABEL_ARRAYS, check_labels, unread_arrays
from model_store.run_settings import Structural
from model_store.structural import HINT, SCHEMAS, StructuralFeatures
from sgformer import Graph, GraphError, SparseRows
from sgformer.adjacency import checked_edge_index
from sgformer.config import Task
from sgformer.edge_list import refuse_edge_values
from sgformer.features import check_values, checked_features
from training.data.graph_folder.edge_sorter import CHUNK_EDGES, EdgeSorter
from training.data.graph_folder.manifest import GraphManifest
from training.data.graph_folder.progress import Report
from training.data.graph_folder.writer import GraphWriter
from training.data.tables.reading import Reading

BLOCK_ROWS = 65_536
Arrays = Mapping[str, NDArray[Any]]


def import_npz(path: Path, writer: GraphWriter, task: Task | None, structural: Structural | None) -> GraphManifest:
    read_arrays(path, set())  # refuses pickles and other files
    names = [name for name in array_names(path) if name in GRAPH_ARRAYS | LABEL_ARRAYS or name.startswith("edge_")]
    arrays = map_npz(path, names, writer.scratch, writer.report)
    return import_arrays(arrays, path.name, writer, task, structural, unread_arrays(path))


def import_arrays(
    arrays: Arrays,
    source: str,
    writer: GraphWriter,
    task: Task | None,
    structural: Structural | None,
    notes: tuple[str, ...] = (),
    feature_type: str | None = None,
) -> GraphManifest:
    """Raises DataError, with the messages of `read_graph_file` and `read_labelled_file`.

    Args:
        feature_type: of the dense features; None keeps float64, and converts all other types to float32.
    """
    if "edge_index" not in arrays:
        raise DataError(f"{source} has no array edge_index")
    ids = _ids(arrays["node_ids"], source) if "node_ids" in arrays else None
    try:
        count, width = _import_graph(arrays, source, writer, structural, ids, feature_type)
    except GraphError as error:
        raise DataError(f"{source}: {error}") from error
    classes = class_names_of(arrays.get("class_names"))
    if ids is not None:
        if len(ids) != count:
            raise DataError(f"{source}: {len(ids)} node_ids for {count} nodes")
        writer.write_ids(ids)
    split = None
    if "y" in arrays:
        labels, split, task = check_labels(source, arrays, count, classes, task)
        writer.write_labels(labels)
        if split is not None:
            writer.write_split(split)
    return writer.finish(
        source,
        task=task if "y" in arrays else None,
        classes=classes,
        features=SCHEMAS[structural] if structural else None,
        reading=Reading(structural=structural).to_json() if structural else None,
        notes=notes,
        width=width,
    )


def map_npz(path: Path, names: Iterable[str], scratch: Path, report: Report) -> dict[str, NDArray[Any]]:
    """The arrays of an npz file, mapped: they are first copied out of the file, which may be compressed."""
    arrays = {}
    try:
        with zipfile.ZipFile(path) as file:
            for name in names:
                report(f"reading {name}", 0, 1)
                extracted = Path(file.extract(f"{name}.npy", scratch))
                arrays[name] = plain_array(path, name, partial(_map, extracted))
                report(f"reading {name}", 1, 1)
    except (OSError, ValueError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError) as error:
        raise DataError(f"{path.name} is not an npz file of plain arrays: {error}") from error
    return arrays


def _map(path: Path) -> NDArray[Any]:
    try:
        mapped: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        return mapped
    except ValueError:  # an empty array cannot be mapped; objects are refused again
        return np.asarray(np.load(path, allow_pickle=False))


def _import_graph(
    arrays: Arrays,
    source: str,
    writer: GraphWriter,
    structural: Structural | None,
    ids: NodeIds | None,
    feature_type: str | None,
) -> tuple[int, int]:
    """Writes edges and features, and returns the numbers of nodes and of features."""
    for name in arrays:
        if name.startswith("edge_") and name != "edge_index":
            refuse_edge_values(name, arrays[name])
    edges = arrays["edge_index"]
    if structural:
        count = _count_without_features(arrays, source)
        _write_edges(edges, count, writer)
        return write_features(StructuralFeatures(structural, writer.adjacency, ids), writer)
    try:
        features: NDArray[Any] | SparseRows = features_of(source, arrays)
    except NoFeatures as error:
        raise DataError(f"{source}: {error}; {HINT}") from error
    count, width = write_features(features, writer, feature_type)
    _write_edges(edges, count, writer)
    return count, width


def _count_without_features(arrays: Arrays, source: str) -> int:
    if arrays.keys() & {"x", "x_data"}:
        raise DataError(f"{source} has features: features of the structure are for graphs without features")
    counts = [len(arrays[name]) for name in ("num_nodes", "node_ids", "y") if name in arrays and arrays[name].ndim]
    if not counts:
        raise DataError(f"{source} has neither x, nor node_ids or y: the number of its nodes is not known")
    return counts[0]


def write_features(
    features: NDArray[Any] | SparseRows | StructuralFeatures, writer: GraphWriter, feature_type: str | None = None
) -> tuple[int, int]:
    """Checks and writes features. Sparse ones are checked in memory."""
    if isinstance(features, SparseRows):
        rows: SparseRows = checked_features(features, None, GraphError)
        Graph.check_size(rows)
        writer.write_sparse(rows)
        return rows.shape
    empty = checked_features(features[:0], None, GraphError)  # checks the number of dimensions and the type
    Graph.check_size(features)  # type: ignore[arg-type]  # reads the shape only
    count, width = features.shape
    target = writer.create_features(count, width, feature_type or empty.dtype.newbyteorder("<").str)
    for start in range(0, len(features), BLOCK_ROWS):
        block = target[start : start + BLOCK_ROWS]
        block[:] = features[start : start + BLOCK_ROWS]
        check_values(block, GraphError, start)
        writer.report("writing features", min(start + BLOCK_ROWS, len(features)), len(features))
    return count, width


def _write_edges(edges: NDArray[Any], count: int, writer: GraphWriter) -> None:
    if edges.ndim != 2 or edges.shape[0] != 2 or edges.dtype.kind not in "iu":
        edges = checked_edge_index(edges, count)  # an empty array, or an error
    sorter, total = EdgeSorter(writer.scratch, count), edges.shape[1]
    for start in range(0, total, CHUNK_EDGES):
        sorter.add(*(edges[end, start : start + CHUNK_EDGES] for end in (0, 1)))
        writer.report("reading edges", min(start + CHUNK_EDGES, total), total)
    writer.write_edges(sorter)


def _ids(values: NDArray[Any], source: str) -> NodeIds:
    try:
        return NodeIds.build(values)
    except DataError as error:
        raise DataError(f"{source}: {error}") from error
