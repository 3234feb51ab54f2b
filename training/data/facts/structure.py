"""Facts about the graph without its features: edges as given and as used, components, and homophily."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgformer import Adjacency
from sgformer.edge_list import EdgeListCounts

BLOCK_ENTRIES = 4_000_000


@dataclass(frozen=True)
class StructureFacts:
    nodes: int
    edges: int
    """Undirected, without repeats and self-loops."""
    given: EdgeListCounts | None
    """None if the edges were not read from a list."""
    isolated: int
    """Nodes without edges."""
    components: int
    largest_component: int
    """In nodes."""
    largest_degree: int

    @classmethod
    def of(cls, adjacency: Adjacency) -> StructureFacts:
        degrees = adjacency.all_degrees()
        sizes = np.bincount(_components(adjacency))
        return cls(
            adjacency.num_nodes,
            adjacency.num_edges,
            adjacency.edge_list,
            int((degrees == 0).sum()),
            int((sizes > 0).sum()),
            int(sizes.max()),
            int(degrees.max()),
        )


@dataclass(frozen=True)
class Homophily:
    """Of the edges whose two ends are labelled."""

    edges: int
    same_class: float
    """The share of edges between nodes of one class."""
    adjusted: float
    """0 if neighbours share a class as often as by chance, 1 if always (Platonov et al. 2023, "Characterizing graph
    datasets for node classification", equation 2)."""

    @classmethod
    def of(cls, adjacency: Adjacency, labels: NDArray[Any]) -> Homophily | None:
        """None if there are no such edges, or all their nodes have one class."""
        ends, same = np.zeros(int(labels.max(initial=0)) + 1, dtype=np.int64), 0
        for rows, entries in _blocks(adjacency):
            left = np.repeat(labels[rows], np.diff(adjacency.indptr[rows.start : rows.stop + 1]))
            right = labels[adjacency.indices[entries]]
            both = (left >= 0) & (right >= 0)
            ends += np.bincount(left[both], minlength=len(ends))
            same += int((left[both] == right[both]).sum())
        if not (total := int(ends.sum())):
            return None
        expected, share = float(((ends / total) ** 2).sum()), same / total
        return None if expected == 1 else cls(total // 2, share, (share - expected) / (1 - expected))


def _blocks(adjacency: Adjacency) -> Iterator[tuple[slice, slice]]:
    """Ranges of rows with the ranges of their entries, at most BLOCK_ENTRIES unless a single row has more."""
    start, indptr = 0, adjacency.indptr
    while start < adjacency.num_nodes:
        stop = int(np.searchsorted(indptr, indptr[start] + BLOCK_ENTRIES, side="right")) - 1
        stop = min(max(stop, start + 1), adjacency.num_nodes)
        yield slice(start, stop), slice(int(indptr[start]), int(indptr[stop]))
        start = stop


def _components(adjacency: Adjacency) -> NDArray[Any]:
    """For every node the smallest node of its connected component. Memory holds a few numbers per node, and no edges.

    A node points to a node with a smaller or equal number; the roots point to themselves. Every pass lets the root of a node
    point to the smallest root among its neighbours, and then shortens all paths to their roots.
    """
    parents = np.arange(adjacency.num_nodes, dtype=adjacency.indices.dtype)
    changed = True
    while changed:
        changed = False
        for rows, entries in _blocks(adjacency):
            starts = adjacency.indptr[rows.start : rows.stop + 1] - entries.start
            linked = rows.start + np.flatnonzero(np.diff(starts))
            if not len(linked):
                continue
            smallest = np.minimum.reduceat(parents[adjacency.indices[entries]], starts[linked - rows.start])
            roots, closer = parents[linked], smallest < parents[linked]
            changed = changed or bool(closer.any())
            np.minimum.at(parents, roots[closer], smallest[closer])
            np.minimum.at(parents, linked[closer], smallest[closer])
        while not np.array_equal(shorter := parents[parents], parents):
            parents = shorter
    return parents
