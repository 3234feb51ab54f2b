"""Makes the CSR arrays of an undirected graph from an edge list that exceeds memory.

1. `add` appends the edges to a file, and counts the entries of every row.
2. Rows are divided into ranges with a bounded number of entries. A second pass writes both directions of every edge to the
   file of its range.
3. Every range is sorted in memory, its repeats are dropped, and its lists are appended to the result.

The result is bitwise equal to that of `Adjacency.from_edges`. Memory holds a range, a chunk of edges, and two
numbers per node.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from sgformer import GraphError
from sgformer.edge_list import EdgeListCounts
from training.data.graph_folder.progress import Report

RANGE_ENTRIES = 8_000_000
MAX_RANGES = 256
"""Each has an open file."""
CHUNK_EDGES = 2_000_000


class EdgeSorter:
    def __init__(self, scratch: Path, num_nodes: int, range_entries: int = RANGE_ENTRIES) -> None:
        """`scratch` is a folder for files, which the caller removes."""
        self._scratch, self._num_nodes, self._range_entries = scratch, num_nodes, range_entries
        self._type = np.dtype(np.int32 if num_nodes <= np.iinfo(np.int32).max else np.int64)
        self._path = scratch / "edges"
        self._counts = np.zeros(num_nodes, dtype=np.int64)
        self._entries = self._links = 0

    def add(self, sources: NDArray[Any], targets: NDArray[Any]) -> None:
        """Adds edges in any direction. Raises GraphError for an end that is not a node."""
        edges = np.stack([sources, targets], axis=1)
        outside = (edges < 0) | (edges >= self._num_nodes)
        if outside.any():
            row = int(outside.any(axis=1).argmax())
            ends = f"{edges[row, 0]} - {edges[row, 1]}"
            raise GraphError(f"edge {self._entries + row} is {ends}, expected node ids from 0 to {self._num_nodes - 1}")
        self._entries += len(edges)
        edges = edges[edges[:, 0] != edges[:, 1]].astype(self._type)
        self._links += len(edges)
        np.add.at(self._counts, edges.reshape(-1), 1)  # bincount would pass over all nodes for every chunk of edges
        with self._path.open("ab") as file:
            edges.tofile(file)

    def write(self, indptr_path: Path, indices_path: Path, report: Report) -> EdgeListCounts:
        """Writes the two arrays as npy files, and returns the counts of the edge list."""
        bounds = self._bounds()
        paths = [self._scratch / f"range_{number}" for number in range(len(bounds) - 1)]
        self._scatter(bounds, paths, report)
        degrees, directed = self._counts, 0
        with indices_path.open("xb") as file:
            _write_header(file, 0, self._type)
            for number, path in enumerate(paths):
                start, stop = bounds[number : number + 2].tolist()
                rows, columns, given = self._sorted_range(path)
                degrees[start:stop] = np.bincount(rows, minlength=stop - start)
                directed += given
                columns.astype(self._type).tofile(file)
                report("sorting edges", number + 1, len(paths))
            total = int(degrees.sum())
            file.seek(0)
            _write_header(file, total, self._type)
        indptr = np.append(0, np.cumsum(degrees))
        with indptr_path.open("xb") as file:
            _write_header(file, len(indptr), indptr.dtype)
            indptr.tofile(file)
        self._path.unlink(missing_ok=True)
        return EdgeListCounts(self._entries, total - directed, self._links - directed, self._entries - self._links)

    def _bounds(self) -> NDArray[np.int64]:
        """Row numbers between which the ranges lie."""
        ends = np.cumsum(self._counts)
        total = int(ends[-1])
        size = max(self._range_entries, -(-total // MAX_RANGES))
        inner = np.searchsorted(ends, np.arange(size, total, size), side="left") + 1
        return np.unique(np.concatenate([[0], inner[inner < self._num_nodes], [self._num_nodes]])).astype(np.int64)

    def _scatter(self, bounds: NDArray[np.int64], paths: list[Path], report: Report) -> None:
        """Writes (row in the range, neighbour, whether the edge was given in the other direction) as one integer each."""
        with ExitStack() as stack:
            files = [stack.enter_context(path.open("wb", buffering=0)) for path in paths]
            done = 0
            for edges in self._chunks():
                rows, columns = edges.T.reshape(-1), edges[:, ::-1].T.reshape(-1)
                ranges = np.searchsorted(bounds, rows, side="right") - 1
                keys = (rows - bounds[ranges]) * self._num_nodes + columns
                keys = 2 * keys + (np.arange(len(keys)) >= len(edges))
                order = np.argsort(ranges, kind="stable")
                ends = np.searchsorted(ranges[order], np.arange(len(paths) + 1))
                for number, file in enumerate(files):
                    keys[order[ends[number] : ends[number + 1]]].tofile(file)
                done += len(edges)
                report("dividing edges", done, self._links)

    def _chunks(self) -> Iterator[NDArray[np.int64]]:
        if self._links:
            edges = np.memmap(self._path, mode="r", dtype=self._type).reshape(-1, 2)
            for start in range(0, len(edges), CHUNK_EDGES):
                yield edges[start : start + CHUNK_EDGES].astype(np.int64)

    def _sorted_range(self, path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        """Rows from the start of the range, neighbours, and the number of different given entries."""
        keys = np.fromfile(path, dtype=np.int64)
        path.unlink()
        keys.sort()
        links = keys >> 1
        is_first = np.append(True, links[1:] != links[:-1])[: len(links)]
        # A repeat sorts after its first entry; an edge that was given in this direction sorts before its reverse.
        given = int((is_first & (keys & 1 == 0)).sum())
        rows, columns = np.divmod(links[is_first], self._num_nodes)
        return rows, columns, given


def _write_header(file: Any, count: int, dtype: np.dtype[Any]) -> None:
    """numpy leaves room for the digits of a longer array, so the header can be written again."""
    npy_format.write_array_header_1_0(
        file, {"descr": dtype.newbyteorder("<").str, "fortran_order": False, "shape": (count,)}
    )
