"""The forward over the neighbourhood of some nodes, from their inputs: it reads no stored state of a layer and no aggregate.

It is slower than `known` and `extend`, and shares only the row-wise layers and the attention with them. Shadow verification
uses it to check their answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sgformer.adjacency import NeighborLists
from sgformer.arrays.operations import Array, Indices
from sgformer.errors import NeighborhoodTooLarge
from sgformer.request_time.inference import Answers, InferenceModel
from sgformer.request_time.new_nodes import NewNodes
from sgformer.sums import AttentionSums

Inputs = Callable[[Indices], tuple[Array, Array]]
"""Z0 and the GCN's input of rows of the graph."""


@dataclass(frozen=True)
class LocalGraph:
    """The nodes that an answer depends on: rows of the graph, then the new nodes, numbered in this order."""

    rows: Indices
    """Rows of the graph, ascending."""
    receivers: Indices
    """The receiving node of every link, ascending. A link is one direction of an edge, or a self-loop. A receiving
    node has all of its links here."""
    senders: Indices
    """The sending node of every link."""
    degrees: Indices
    """Degrees in the whole graph, with the edges of the new nodes and the self-loop."""

    @classmethod
    def around(
        cls, adjacency: NeighborLists, rows: Indices, hops: int, max_entries: int, new: NewNodes | None = None
    ) -> LocalGraph:
        """The neighbourhood of rows, or of new nodes that share a scenario. Raises NeighborhoodTooLarge."""
        ball = np.unique(rows if new is None else new.neighbors)
        inner = ball[:0]
        for _ in range(hops if new is None else hops - 1):
            inner = ball
            entries = int(adjacency.degrees(inner).sum())
            if entries > max_entries:
                raise NeighborhoodTooLarge(0, entries, max_entries)
            ball = np.union1d(inner, adjacency.neighbors(inner))
        local = np.searchsorted(ball, inner)
        links = [np.stack([np.repeat(local, adjacency.degrees(inner)), np.searchsorted(ball, adjacency.neighbors(inner))])]
        degrees = adjacency.degrees(ball) + 1
        count = 0 if new is None else len(new)
        if new is not None:
            ends = np.searchsorted(ball, new.neighbors)
            owners = len(ball) + np.repeat(np.arange(count), new.counts)
            added = np.concatenate([np.stack([owners, ends]), new.edges + len(ball)], axis=1)
            links += added, added[::-1]
            degrees = np.append(degrees, np.ones(count, dtype=np.int64))
            degrees += np.bincount(added.ravel(), minlength=len(degrees))
        own = np.append(local, len(ball) + np.arange(count))
        receivers, senders = np.concatenate([*links, np.stack([own, own])], axis=1)
        order = np.argsort(receivers, kind="stable")
        return cls(ball, receivers[order], senders[order], degrees)


def local_answers(
    model: InferenceModel,
    inputs: Inputs,
    sums: AttentionSums,
    adjacency: NeighborLists,
    rows: Indices,
    max_entries: int,
    new: NewNodes | None = None,
) -> Answers:
    """The answers for rows of the graph, in their order, or for new nodes that share a scenario (then `rows` is empty).

    Raises:
        NeighborhoodTooLarge: the neighbourhood has more than `max_entries` adjacency entries.
    """
    around = LocalGraph.around(adjacency, rows, model.config.layers, max_entries, new)
    states, initial = inputs(around.rows)
    answered = np.searchsorted(around.rows, rows)
    if new is not None:
        parts = zip((states, initial), model.inputs(new.features), strict=True)
        states, initial = (np.concatenate(pair) for pair in parts)
        answered = np.arange(len(around.rows), len(states))
    graph_states = _propagate(model, around, initial)[answered]
    query, key, value = model.project(states[answered], "query", "key", "value")
    if new is not None:
        sums = sums.with_rows(query, key, value)
    return model.answer(states[answered], sums.attend(query, value), graph_states)


def _propagate(model: InferenceModel, around: LocalGraph, initial: Array) -> Array:
    """The output of the GCN. The states of a row at distance r of an answered node are right up to layer L - r; its states
    of later layers are not read.
    """
    receivers, starts = np.unique(around.receivers, return_index=True)
    root = np.sqrt(around.degrees)[:, None]
    states = initial
    for apply in model.graph_layers:
        totals = np.add.reduceat((states / root)[around.senders], starts, axis=0)
        aggregates = totals / root[receivers]
        own = initial if apply.reads == 0 else states
        states = states.copy()
        states[receivers] = apply(aggregates, own[receivers])
    return states
