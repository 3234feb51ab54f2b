"""A node and the graph without it: every variant of the node is a new node of that graph.

The graph without an edge of a node is the graph without the node, plus the node with the other edges. So one pass answers
all variants of a node exactly, as that many new nodes (`request_time.extension`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgformer.arrays.operations import Indices
from sgformer.errors import NeighborhoodTooLarge
from sgformer.explain.branches import Branches, split_logits
from sgformer.features import FeatureRows, MappedRows, SparseRows
from sgformer.live.changing_graph import ChangingGraph
from sgformer.request_time.extension import run_graph_branch
from sgformer.request_time.neighborhood import cost_of
from sgformer.request_time.new_nodes import NewNodes

CHUNK_COST = 50_000
"""Largest total cost of the variants that are answered at once, in the units of `cost_of`: bounds memory."""


class Budget:
    """The work that an explanation may still do, in the units of `cost_of`: about one per state that is read."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit, self.spent = limit, 0

    def spend(self, cost: int) -> None:
        """Raises NeighborhoodTooLarge."""
        self.spent += cost
        if self.limit is not None and self.spent > self.limit:
            raise NeighborhoodTooLarge(0, self.spent, self.limit)


@dataclass(frozen=True)
class Subject:
    """The node that is explained. `graph` does not contain this node, and must not change while the subject is used."""

    graph: ChangingGraph
    features: FeatureRows | MappedRows
    """One row."""
    neighbors: Indices
    budget: Budget

    @classmethod
    def known(cls, graph: ChangingGraph, row: int, budget: Budget, features: FeatureRows | None = None) -> Subject:
        """A node of the graph. Without `features`, its raw features, all variants have the stored inputs of the node.

        Raises:
            UnknownNodeError: the graph does not have this row.
            NeighborhoodTooLarge: taking the node out of the graph exceeds the budget.
        """
        draft, rows = graph.draft(), np.array([row])
        draft.remove_node(row)
        neighbors = graph.adjacency.neighbors(rows)
        _spend_removal(graph, neighbors, budget)
        width = graph.model.config.in_features
        mapped = MappedRows(graph.states.inputs, graph.states.layers[0], rows, width) if features is None else features
        return cls(graph.what_if(draft.changes()), mapped, neighbors, budget)

    @classmethod
    def new(cls, graph: ChangingGraph, new: NewNodes, budget: Budget) -> Subject:
        """One new node. Raises NewNodeError if a neighbour was removed."""
        graph.check_neighbors(new)
        return cls(graph, new.features, new.neighbors, budget)  # type: ignore[arg-type]  # one row is not mixed

    def logits(self, neighbors: Sequence[Indices], features: Any = None) -> NDArray[Any]:
        """The logits (k, outputs) of k variants of the node: each has a list in `neighbors` and a row in `features`.

        Without `features`, all variants have the features of the node. Raises NeighborhoodTooLarge.
        """
        if features is None:
            features = repeated(self.features, len(neighbors))
        # Variants differ by a few edges, so each costs about as much as the first.
        cost = self._cost(self._variants(neighbors[:1], features[:1]))
        self.budget.spend(cost * len(neighbors))
        step = max(1, CHUNK_COST // cost)
        parts = []
        for start in range(0, len(neighbors), step):
            variants = self._variants(neighbors[start : start + step], features[start : start + step])
            parts.append(self.graph.extended(variants, max_recompute=self.budget.limit).logits)
        return np.concatenate(parts)

    def branches(self) -> Branches:
        """The parts of the logits of the node as it is."""
        graph, variant = self.graph, self._variants([self.neighbors], self.features)
        branch = run_graph_branch(graph.model, graph.states, graph.adjacency, variant)
        rows = branch.inputs.astype(np.float64)
        sums = graph.sums.with_rows(*graph.model.project(rows, "query", "key", "value"))
        return split_logits(graph.model, sums, rows, branch.graph_states)

    def _variants(self, neighbors: Sequence[Indices], features: Any) -> NewNodes:
        """The variants as new nodes, each in its own scenario."""
        counts = np.array([len(rows) for rows in neighbors], dtype=np.int64)
        no_edges = np.empty((2, 0), dtype=np.int64)
        size = self.graph.adjacency.num_nodes
        return NewNodes(features, np.concatenate(neighbors), counts, no_edges, np.arange(len(counts)), size)

    def _cost(self, variant: NewNodes) -> int:
        return cost_of(variant, self.graph.adjacency, self.graph.model.config.layers)


def repeated(features: Any, count: int) -> Any:
    """One row of features, `count` times."""
    rows = np.zeros(count, dtype=np.int64)
    if isinstance(features, MappedRows):
        return MappedRows(features.inputs, features.initial, features.rows[rows], features.width)
    return features.take(rows) if isinstance(features, SparseRows) else features[rows]


def _spend_removal(graph: ChangingGraph, neighbors: Indices, budget: Budget) -> None:
    """Spends the adjacency entries that `what_if` reads to find the states that the removal changes: L - 1 hops."""
    reached = neighbors
    for _ in range(graph.model.config.layers - 1):
        budget.spend(int(graph.adjacency.degrees(reached).sum()) + len(reached))
        reached = graph.adjacency.distinct(np.concatenate([reached, graph.adjacency.neighbors(reached)]))
