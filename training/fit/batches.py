"""The paper's mini-batches for large graphs: a random partition of the nodes, each part with the edges among its nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgformer import Adjacency, Graph, SparseRows
from sgformer.arrays.operations import expand_runs, run_starts
from sgformer.features import FeatureRows


def random_partition(count: int, batch_nodes: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Yields every node once, in batches of `batch_nodes`. The last batch may have fewer nodes, but at least two."""
    order = rng.permutation(count)
    bounds = list(range(0, count, batch_nodes))
    if count - bounds[-1] < 2 and len(bounds) > 1:
        bounds.pop()
    for start, stop in zip(bounds, [*bounds[1:], count], strict=True):
        yield np.sort(order[start:stop])


def induced_subgraph(graph: Graph, nodes: NDArray[np.int64]) -> Graph:
    """The graph of these nodes, which must be sorted, and the edges among them. Its node i is nodes[i]."""
    adjacency = graph.adjacency
    new_number = np.full(graph.num_nodes, -1, dtype=np.int64)
    new_number[nodes] = np.arange(len(nodes))
    degrees = adjacency.degrees(nodes)
    neighbors = new_number[adjacency.neighbors(nodes)]
    inside = neighbors >= 0
    owners = np.repeat(np.arange(len(nodes)), degrees)[inside]
    indptr = np.zeros(len(nodes) + 1, dtype=np.int64)
    np.cumsum(np.bincount(owners, minlength=len(nodes)), out=indptr[1:])
    indices: Any = neighbors[inside].astype(adjacency.indices.dtype)
    return Graph(_feature_rows(graph.features, nodes), Adjacency(indptr, indices))


def _feature_rows(features: FeatureRows, nodes: NDArray[np.int64]) -> FeatureRows:
    if not isinstance(features, SparseRows):
        return features[nodes]
    lengths = np.diff(features.indptr)[nodes]
    entries = expand_runs(features.indptr[nodes], lengths)
    indptr = np.append(run_starts(lengths), lengths.sum())
    return SparseRows(indptr, features.indices[entries], features.values[entries], features.width)
