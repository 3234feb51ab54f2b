"""The paper's mini-batches for large graphs: a random partition of the nodes, each part with the edges among its nodes.

A graph that is mapped from files is read part by part; memory holds the parts in use and one number per node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgformer import Adjacency, Graph, SparseRows
from sgformer.features import FeatureRows


def random_partition(count: int, batch_nodes: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Yields every node once, in batches of `batch_nodes`. The last batch may have fewer nodes, but at least two."""
    order = rng.permutation(count)
    bounds = list(range(0, count, batch_nodes))
    if count - bounds[-1] < 2 and len(bounds) > 1:
        bounds.pop()
    for start, stop in zip(bounds, [*bounds[1:], count], strict=True):
        yield np.sort(order[start:stop])


def partition_of(epoch: int, count: int, batch_nodes: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """The random partition of an epoch (from 0). It depends on the epoch and the seed only, so a resumed run repeats it.

    The last number distinguishes its generator from that of a random split with the same seed: in the first epoch, batches
    would otherwise have only training nodes, or none.
    """
    return random_partition(count, batch_nodes, np.random.default_rng((seed, epoch, 1)))


class Subgraphs:
    """Makes induced subgraphs of a graph, in time that depends on the nodes of a subgraph and their neighbours only."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        # Reused by all subgraphs: a new array for each would cost a pass over all nodes.
        self._new_number = np.full(graph.num_nodes, -1, dtype=graph.adjacency.indices.dtype)

    def induced(self, nodes: NDArray[np.int64]) -> Graph:
        """The graph of these nodes, which must be sorted, and the edges among them. Its node i is nodes[i].

        Not for several threads at once.
        """
        adjacency, new_number = self._graph.adjacency, self._new_number
        new_number[nodes] = np.arange(len(nodes))
        neighbors = new_number[adjacency.neighbors(nodes)]
        new_number[nodes] = -1
        inside = neighbors >= 0
        owners = np.repeat(np.arange(len(nodes)), adjacency.degrees(nodes))[inside]
        indptr = np.zeros(len(nodes) + 1, dtype=np.int64)
        np.cumsum(np.bincount(owners, minlength=len(nodes)), out=indptr[1:])
        indices: Any = neighbors[inside]
        return Graph(_feature_rows(self._graph.features, nodes), Adjacency(indptr, indices))


def _feature_rows(features: FeatureRows, nodes: NDArray[np.int64]) -> FeatureRows:
    return features.take(nodes) if isinstance(features, SparseRows) else np.asarray(features[nodes])
