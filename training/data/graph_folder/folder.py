"""Opens a graph folder: verifies it, and maps its arrays. Nothing as large as the graph is loaded."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store import DataError, NodeIds, SnapshotError
from model_store.format import npy
from model_store.format.files import sha256_of_all
from model_store.format.structure import check_lists, check_node_order
from sgformer import Adjacency, Graph, SparseRows
from sgformer.features import FeatureRows
from training.data.graph_folder.manifest import (
    FEATURES,
    FEATURES_INDICES,
    FEATURES_INDPTR,
    FEATURES_VALUES,
    INDICES,
    INDPTR,
    LABELS,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    NODE_IDS,
    NODE_ORDER,
    SPARSE,
    SPLIT,
    GraphManifest,
)


@dataclass(frozen=True)
class GraphFolder:
    """A verified graph. The arrays are mapped: reading a part of one reads that part of its file."""

    path: Path
    manifest: GraphManifest
    arrays: dict[str, NDArray[Any]]

    @classmethod
    def open(cls, path: Path) -> GraphFolder:
        """Checks every file against the manifest, and that the arrays form a graph.

        Raises:
            DataError: names the folder, the file and what is wrong with it.
        """
        try:
            with (path / MANIFEST).open("rb") as file:
                manifest = GraphManifest.from_json(file.read(MAX_MANIFEST_BYTES + 1))
            _check_files(path, manifest)
            arrays = {name: npy.open_mapped(path, name, entry.spec) for name, entry in manifest.arrays.items()}
            _check_shapes(manifest)
            _check_content(arrays, manifest)
        except (DataError, SnapshotError) as error:
            raise DataError(f"{path.name}: {error}") from error
        except OSError as error:
            raise DataError(f"{path.name} cannot be read: {error.strerror or error}") from error
        return cls(path, manifest, {name: _with_read_ahead(array) for name, array in arrays.items()})

    @property
    def graph(self) -> Graph:
        features: FeatureRows
        if FEATURES in self.arrays:
            features = self.arrays[FEATURES]
        else:
            indptr, indices, values = (self.arrays[name] for name in SPARSE)
            features = SparseRows(indptr, indices, values, self.manifest.width)
        return Graph(features, Adjacency(self.arrays[INDPTR], self.arrays[INDICES], self.manifest.given))

    @property
    def node_ids(self) -> NodeIds | None:
        return NodeIds(self.arrays[NODE_IDS], self.arrays[NODE_ORDER]) if NODE_IDS in self.arrays else None

    @property
    def labels(self) -> NDArray[Any] | None:
        return self.arrays.get(LABELS)

    @property
    def split(self) -> NDArray[np.int8] | None:
        return self.arrays.get(SPLIT)


def is_graph_folder(path: Path) -> bool:
    return (path / MANIFEST).is_file()


def _check_files(path: Path, manifest: GraphManifest) -> None:
    names = {entry.name for entry in os.scandir(path)}
    if missing := sorted(manifest.arrays.keys() - names):
        raise DataError(f"{missing[0]} is missing")
    if extra := sorted(names - manifest.arrays.keys() - {MANIFEST}):
        raise DataError(f"{extra[0]} is not in {MANIFEST}")
    for name, entry in manifest.arrays.items():
        if (size := (path / name).stat().st_size) != entry.size:
            raise DataError(f"{name} is {size:,} bytes long, {MANIFEST} says {entry.size:,}")
    for name, digest in sha256_of_all(path, manifest.arrays).items():
        if digest != manifest.arrays[name].sha256:
            raise DataError(f"{name} does not have the hash of {MANIFEST}: it was changed after the import, or is damaged")


def _check_shapes(manifest: GraphManifest) -> None:
    nodes, arrays = manifest.nodes, manifest.arrays
    has_dense = FEATURES in arrays
    needed = {INDPTR, INDICES, *((FEATURES,) if has_dense else SPARSE)} | ({LABELS} if manifest.task else set())
    if missing := sorted(needed - arrays.keys()):
        raise DataError(f"{MANIFEST} lists no {missing[0]}")
    expected: dict[str, tuple[int, ...]] = {INDPTR: (nodes + 1,), INDICES: (2 * manifest.edges,), SPLIT: (nodes,)}
    expected |= {NODE_IDS: (nodes,), NODE_ORDER: (nodes,), FEATURES: (nodes, manifest.width), FEATURES_INDPTR: (nodes + 1,)}
    for name, entry in arrays.items():
        if entry.shape != expected.get(name, entry.shape) or (name == LABELS and entry.shape[0] != nodes):
            raise DataError(f"{name} has shape {entry.shape}, which is not that of {nodes:,} nodes")
    if (NODE_IDS in arrays) != (NODE_ORDER in arrays):
        raise DataError(f"{MANIFEST} lists one of {NODE_IDS} and {NODE_ORDER}, expected both or none")


def _check_content(arrays: dict[str, NDArray[Any]], manifest: GraphManifest) -> None:
    check_lists(arrays, INDPTR, INDICES, manifest.nodes)
    if FEATURES_VALUES in arrays:
        if arrays[FEATURES_VALUES].shape != arrays[FEATURES_INDICES].shape:
            raise DataError(f"{FEATURES_VALUES} and {FEATURES_INDICES} differ in length")
        check_lists(arrays, FEATURES_INDPTR, FEATURES_INDICES, manifest.width)
    if NODE_IDS in arrays:
        check_node_order(arrays[NODE_IDS], arrays[NODE_ORDER])
    if SPLIT in arrays and (arrays[SPLIT].min() < -1 or arrays[SPLIT].max() > 2):
        raise DataError(f"{SPLIT} holds a part other than 0 (training), 1 (validation), 2 (test) and -1 (none)")


def _with_read_ahead(array: NDArray[Any]) -> NDArray[Any]:
    """Restores the read-ahead of the kernel: training and the full forward read most rows, in ascending order."""
    pages: Any = array.base
    if isinstance(pages, mmap.mmap):  # an empty array is not mapped
        pages.madvise(mmap.MADV_NORMAL)
    return array
