"""A graph: the features of its nodes and their undirected edges, validated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sgformer.adjacency import Adjacency
from sgformer.errors import GraphError
from sgformer.features import FeatureRows, SparseRows, checked_features, stack_rows


@dataclass(frozen=True)
class Graph:
    """Node i has feature row i. `Graph.build` validates; the constructor does not.

    Features that need no conversion are shared with the caller, not copied.
    """

    features: FeatureRows
    adjacency: Adjacency

    @classmethod
    def build(cls, features: Any, edge_index: Any) -> Graph:
        """From a feature matrix (dense, `SparseRows`, or scipy sparse) and a (2, E) array of edges in any direction.

        Raises:
            GraphError: fewer than two nodes, no features, NaN, wrong shapes, or edges of unknown nodes.
        """
        rows = checked_features(features, None, GraphError)
        cls.check_size(rows)
        return cls(rows, Adjacency.from_edges(edge_index, rows.shape[0]))

    @classmethod
    def from_matrix(cls, features: Any, matrix: Any) -> Graph:
        """From a feature matrix and a square adjacency matrix, dense or scipy sparse."""
        rows = checked_features(features, None, GraphError)
        cls.check_size(rows)
        adjacency = Adjacency.from_matrix(matrix)
        if adjacency.num_nodes != rows.shape[0]:
            raise GraphError(f"{rows.shape[0]} feature rows for an adjacency matrix of {adjacency.num_nodes} nodes")
        return cls(rows, adjacency)

    @staticmethod
    def check_size(rows: FeatureRows) -> None:
        """Raises GraphError unless these are features, at least one, of at least two nodes."""
        nodes, width = rows.shape
        # The attention of a single node divides by 1 + cos(q, k), which may be zero.
        if nodes < 2:
            raise GraphError(f"a graph needs at least 2 nodes, got {nodes}")
        if width == 0:
            raise GraphError("a graph needs at least 1 feature per node, got 0")

    def check_width(self, in_features: int) -> None:
        """Raises GraphError if a model with `in_features` features cannot read this graph."""
        if self.num_features != in_features:
            raise GraphError(f"features are {self.num_features} wide, this model expects {in_features}")

    @property
    def num_nodes(self) -> int:
        return int(self.features.shape[0])

    @property
    def num_features(self) -> int:
        return int(self.features.shape[1])

    @property
    def num_edges(self) -> int:
        return self.adjacency.num_edges

    def with_nodes(self, features: FeatureRows, edges: Any) -> Graph:
        """This graph with new nodes N, N+1, ... and their edges, as for a full recompute. Costs O(N + E)."""
        rows = checked_features(features, self.num_features, GraphError)
        adjacency = self.adjacency.with_nodes(rows.shape[0], edges)
        if isinstance(self.features, SparseRows):
            if not isinstance(rows, SparseRows):
                raise GraphError("the new nodes have dense features, expected sparse features as in this graph")
            return Graph(stack_rows([self.features, rows]), adjacency)
        return Graph(np.concatenate([self.features, np.asarray(rows, dtype=self.features.dtype)]), adjacency)
