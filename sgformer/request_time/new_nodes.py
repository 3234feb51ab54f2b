"""A question about nodes that the graph does not have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sgformer.arrays.operations import Indices
from sgformer.errors import NewNodeError
from sgformer.features import FeatureRows, MixedRows, as_array, checked_features, stack_any


@dataclass(frozen=True)
class NewNodes:
    """Features and neighbours of k new nodes, validated by `NewNodes.build`.

    `scenarios[i]` says in which imagined graph new node i stands. Independent nodes have one each, so that an answer never
    depends on what else was asked; joint nodes share one.
    """

    features: FeatureRows | MixedRows
    neighbors: Indices
    """Known neighbours of all new nodes, laid end to end, each list in rising order without repeats."""
    counts: Indices
    """How many of them belong to each new node."""
    edges: Indices
    """(2, m) positions of joint new nodes that are linked, each pair once."""
    scenarios: Indices
    num_nodes: int
    """Of the graph that the question was checked against; `extend` refuses to ask another."""

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
        """Checks a question against a graph of `num_nodes` nodes with `num_features` features each.

        Repeated neighbours count once. `edges` link new nodes by their positions and need `joint`.

        Raises:
            NewNodeError: what is wrong, and with which new node.
        """
        rows = checked_features(features, num_features, NewNodeError)
        if len(neighbors) != rows.shape[0]:
            raise NewNodeError(f"{rows.shape[0]} feature row(s) for {len(neighbors)} neighbour list(s)")
        if rows.shape[0] == 0:
            raise NewNodeError("no new node was given, expected at least one")
        lists = [_checked_neighbors(ids, num_nodes, item) for item, ids in enumerate(neighbors)]
        if len(edges) and not joint:
            raise NewNodeError("edges between new nodes need joint mode: independent new nodes do not see each other")
        return cls(
            rows,
            np.concatenate(lists),
            np.array([len(ids) for ids in lists], dtype=np.int64),
            _checked_edges(edges, len(lists)),
            np.zeros(len(lists), dtype=np.int64) if joint else np.arange(len(lists)),
            num_nodes,
        )

    @classmethod
    def merged(cls, questions: Sequence[NewNodes]) -> NewNodes:
        """Several questions as one batch. Each keeps its own scenarios, so no answer changes."""
        if len({question.num_nodes for question in questions}) != 1:
            raise NewNodeError("questions about graphs of different sizes cannot be asked in one batch")
        nodes = np.cumsum([0] + [len(question) for question in questions])
        scenarios = np.cumsum([0] + [question.num_scenarios for question in questions])
        return cls(
            stack_any([question.features for question in questions]),
            np.concatenate([question.neighbors for question in questions]),
            np.concatenate([question.counts for question in questions]),
            np.concatenate([q.edges + shift for q, shift in zip(questions, nodes, strict=False)], axis=1),
            np.concatenate([q.scenarios + shift for q, shift in zip(questions, scenarios, strict=False)]),
            questions[0].num_nodes,
        )


def _checked_neighbors(ids: Any, num_nodes: int, item: int) -> Indices:
    fail = partial(NewNodeError, item=item)
    array = as_array(ids, "neighbours", lambda message, _row: fail(message))
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise fail(f"neighbours are {array.dtype} with {array.ndim} dimension(s), expected a list of integer node ids")
    array = np.unique(array)
    outside = array[(array < 0) | (array >= num_nodes)]
    if len(outside):
        raise fail(f"neighbour {outside[0]} is not in the graph, expected ids from 0 to {num_nodes - 1}")
    return array.astype(np.int64)


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
