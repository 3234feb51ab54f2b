"""New nodes as validated arrays: their features, known neighbours, and the edges between joint new nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sgformer.arrays.operations import Indices
from sgformer.errors import NewNodeError
from sgformer.features import FeatureRows, MixedRows, as_array, checked_features, stack_any, take_rows


@dataclass(frozen=True)
class NewNodes:
    """Features and neighbours of k new nodes, validated by `NewNodes.build`.

    A scenario is a copy of the graph with some new nodes added; `scenarios[i]` is the scenario of new node i. Independent
    nodes have a scenario each, so their answers do not depend on each other; joint nodes share a scenario.
    """

    features: FeatureRows | MixedRows
    neighbors: Indices
    """The known neighbours of all new nodes, concatenated; each list is sorted and has no duplicates."""
    counts: Indices
    """The number of known neighbours of each new node."""
    edges: Indices
    """(2, m) edges between joint new nodes, by position; each pair occurs once."""
    scenarios: Indices
    num_nodes: int
    """The size of the graph for which the request was validated; `extend` refuses another graph."""

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def num_scenarios(self) -> int:
        return int(self.scenarios[-1]) + 1 if len(self.scenarios) else 0

    @classmethod
    def build(
        cls,
        features: Any,
        neighbors: Sequence[Sequence[int]],
        *,
        num_nodes: int,
        num_features: int,
        edges: Sequence[tuple[int, int]] = (),
        joint: bool = False,
    ) -> NewNodes:
        """Validates a request for a graph of `num_nodes` nodes with `num_features` features each.

        Repeated neighbours count once. `edges` are pairs of positions of new nodes, and need `joint`.

        Raises:
            NewNodeError: the input is invalid; `item` is the position of the new node at fault.
        """
        rows = checked_features(features, num_features, NewNodeError)
        if len(neighbors) != rows.shape[0]:
            raise NewNodeError(f"{rows.shape[0]} feature row(s) for {len(neighbors)} neighbour list(s)")
        if rows.shape[0] == 0:
            raise NewNodeError("the request has no new node, expected at least one")
        lists = [_checked_neighbors(ids, num_nodes, item) for item, ids in enumerate(neighbors)]
        if len(edges) and not joint:
            raise NewNodeError("edges between new nodes need joint mode: independent new nodes do not affect each other")
        return cls(
            rows,
            np.concatenate(lists),
            np.array([len(ids) for ids in lists], dtype=np.int64),
            _checked_edges(edges, len(lists)),
            np.zeros(len(lists), dtype=np.int64) if joint else np.arange(len(lists)),
            num_nodes,
        )

    def scenario(self, number: int) -> NewNodes:
        """The new nodes of one scenario, as a request of their own."""
        members = np.flatnonzero(self.scenarios == number)
        neighbors = self.neighbors[np.repeat(self.scenarios == number, self.counts)]
        edges = self.edges[:, self.scenarios[self.edges[0]] == number] - members[0]
        features = take_rows(self.features, members)
        return NewNodes(features, neighbors, self.counts[members], edges, self.scenarios[members] * 0, self.num_nodes)

    @classmethod
    def merged(cls, requests: Sequence[NewNodes]) -> NewNodes:
        """Merges requests into a batch. Each request keeps its own scenarios, so no answer changes."""
        if len({request.num_nodes for request in requests}) != 1:
            raise NewNodeError("the requests are for graphs of different sizes, expected one graph per batch")
        nodes = np.cumsum([0] + [len(request) for request in requests])
        scenarios = np.cumsum([0] + [request.num_scenarios for request in requests])
        return cls(
            stack_any([request.features for request in requests]),
            np.concatenate([request.neighbors for request in requests]),
            np.concatenate([request.counts for request in requests]),
            np.concatenate([r.edges + shift for r, shift in zip(requests, nodes, strict=False)], axis=1),
            np.concatenate([r.scenarios + shift for r, shift in zip(requests, scenarios, strict=False)]),
            requests[0].num_nodes,
        )


def _checked_neighbors(ids: Any, num_nodes: int, item: int) -> Indices:
    fail = partial(NewNodeError, item=item)
    array = as_array(ids, "neighbours", lambda message, _row: fail(message))
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise fail(f"neighbours are {array.dtype} with {array.ndim} dimension(s), expected a list of integer node ids")
    array = _sorted_distinct(array)
    if array[0] < 0 or array[-1] >= num_nodes:
        outside = array[0] if array[0] < 0 else array[np.searchsorted(array, num_nodes)]
        raise fail(f"neighbour {outside} is not in the graph, expected ids from 0 to {num_nodes - 1}")
    return array.astype(np.int64, copy=False)


def _sorted_distinct(array: Indices) -> Indices:
    """As `np.unique`, which takes twice as long for the few neighbours of a new node."""
    array = np.sort(array)
    differs = array[1:] != array[:-1]
    return array if differs.all() else array[np.append(True, differs)]


def _checked_edges(edges: Any, count: int) -> Indices:
    array = as_array(edges, "edges", NewNodeError)
    if array.size == 0:
        return np.empty((2, 0), dtype=np.int64)
    if array.ndim != 2 or array.shape[1] != 2 or array.dtype.kind not in "iu":
        raise NewNodeError(f"edges are {array.dtype} of shape {array.shape}, expected pairs of new-node positions")
    for left, right in array:
        if not (0 <= left < count and 0 <= right < count):
            raise NewNodeError(f"edge {left} - {right} names no new node, expected positions from 0 to {count - 1}")
        if left == right:
            raise NewNodeError("an edge to itself, expected edges between two new nodes", item=int(left))
    return np.unique(np.sort(array.astype(np.int64), axis=1), axis=0).T
