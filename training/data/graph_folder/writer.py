"""Writes the files of a graph folder into an empty folder, `graph.json` last."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store import FeatureSchema, NodeIds
from model_store.format import npy
from model_store.format.files import sha256_of_all
from model_store.format.layout import ArraySpec
from sgformer import Adjacency, SparseRows
from sgformer.config import Task
from sgformer.edge_list import EdgeListCounts
from training.data.graph_folder.edge_sorter import EdgeSorter
from training.data.graph_folder.manifest import (
    FEATURES,
    INDICES,
    INDPTR,
    LABELS,
    MANIFEST,
    NODE_IDS,
    NODE_ORDER,
    SPARSE,
    SPLIT,
    ArrayEntry,
    GraphManifest,
)
from training.data.graph_folder.progress import Report

LIBRARIES = ("sgformer-serving", "numpy", "duckdb", "pyarrow")


class GraphWriter:
    """`scratch` is a folder for intermediate files; `finish` removes it."""

    def __init__(self, folder: Path, report: Report) -> None:
        self.folder, self.report = folder, report
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self._specs: dict[str, ArraySpec] = {}
        self._edge_counts: EdgeListCounts | None = None

    def create_features(self, count: int, width: int, dtype: str = "<f4") -> NDArray[Any]:
        """Returns the array of the dense features, mapped for writing."""
        self._specs[FEATURES] = ArraySpec((count, width), dtype)
        return npy.create(self.folder / FEATURES, self._specs[FEATURES])

    def write_sparse(self, rows: SparseRows) -> None:
        for name, array in zip(SPARSE, (rows.indptr, rows.indices, rows.values), strict=True):
            self._write(name, array)

    def write_edges(self, sorter: EdgeSorter) -> None:
        self._edge_counts = sorter.write(self.folder / INDPTR, self.folder / INDICES, self.report)
        for name in (INDPTR, INDICES):
            array = np.load(self.folder / name, mmap_mode="r")
            self._specs[name] = ArraySpec(array.shape, array.dtype.str)

    @property
    def adjacency(self) -> Adjacency:
        """The edges that were written, mapped."""
        indptr, indices = (np.load(self.folder / name, mmap_mode="r") for name in (INDPTR, INDICES))
        return Adjacency(indptr, indices, self._edge_counts)

    def write_ids(self, ids: NodeIds) -> None:
        for name, array in zip((NODE_IDS, NODE_ORDER), ids.arrays, strict=True):
            self._write(name, array)

    def write_labels(self, labels: NDArray[Any]) -> None:
        self._write(LABELS, labels)

    def write_split(self, split: NDArray[np.int8]) -> None:
        self._write(SPLIT, split)

    def finish(
        self,
        source: str,
        *,
        task: Task | None,
        classes: tuple[str, ...] | None,
        features: FeatureSchema | None = None,
        reading: Mapping[str, Any] | None = None,
        notes: tuple[str, ...] = (),
        missing_cells: Mapping[str, int] | None = None,
        width: int,
    ) -> GraphManifest:
        shutil.rmtree(self.scratch)
        self.report("hashing", 0, 1)
        digests = sha256_of_all(self.folder, self._specs)
        arrays = {
            name: ArrayEntry(spec.shape, spec.dtype, (self.folder / name).stat().st_size, digests[name])
            for name, spec in self._specs.items()
        }
        manifest = GraphManifest(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            source=source,
            nodes=self._specs[INDPTR].shape[0] - 1,
            edges=self._specs[INDICES].shape[0] // 2,
            width=width,
            arrays=arrays,
            given=self._edge_counts or EdgeListCounts(0, 0, 0, 0),
            task=task,
            classes=classes,
            features=features,
            reading=reading,
            notes=notes,
            missing_cells=missing_cells,
            libraries={"python": platform.python_version()} | {name: version(name) for name in LIBRARIES},
        )
        (self.folder / MANIFEST).write_bytes(manifest.to_json())
        self.report("hashing", 1, 1)
        return manifest

    def _write(self, name: str, array: NDArray[Any]) -> None:
        self._specs[name] = ArraySpec(array.shape, array.dtype.newbyteorder("<").str)
        npy.write(self.folder / name, array, self._specs[name])
