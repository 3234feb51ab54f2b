"""Which stored states a new node changes, and which of those its own answer needs: integers only.

Let S be the neighbours of the new node and N^r[S] all nodes within r hops of S. At layer l the states that changed are
N^l[S], the states that its answer needs are N^{L-1-l}[S]; only their intersection N^{min(l, L-1-l)}[S] is recomputed
(docs/mathematics.md section 4). With cached aggregates a recomputed node sums over its *changed* neighbours only, so hubs
are not walked over where they are merely touched.

A batch is one disjoint union: every set holds (scenario, node) pairs, coded as scenario * N + node.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sgformer.adjacency import Adjacency
from sgformer.arrays.operations import Array, Indices, ops_for, run_starts
from sgformer.errors import NeighborhoodTooLarge
from sgformer.request_time.new_nodes import NewNodes

BISECTION_COST = 16
"""Testing one pair by bisection costs about as much as walking over this many neighbours."""


def radius(layer: int, layers: int) -> int:
    """How many hops around S are recomputed at this layer."""
    return min(layer, layers - 1 - layer)


@dataclass(frozen=True)
class Ball:
    """Nodes within some hops of S, in every scenario, sorted by scenario and node."""

    keys: Indices
    scenarios: Indices
    nodes: Indices
    degrees: Indices
    """In the stored graph, self-loop included."""
    new_degrees: Indices
    """With the new nodes' edges."""


@dataclass(frozen=True)
class Links:
    """For every target the positions of its sources, grouped; every target has at least one."""

    sources: Indices
    starts: Indices

    @classmethod
    def grouped(cls, targets: Indices, sources: Indices, num_targets: int) -> Links:
        # Stable: a target's additions come in the same order whatever else is in the batch, so its bits do not change.
        order = np.argsort(targets, kind="stable")
        return cls(sources[order], run_starts(np.bincount(targets, minlength=num_targets)))

    def sum(self, rows: Array) -> Array:
        ops = ops_for(rows)
        return ops.segment_sum(ops.take(rows, self.sources), self.starts)


@dataclass(frozen=True)
class Walk:
    """Edges from a ball (`near`, positions in it) to the next larger one (`far`), each node to itself included."""

    near: Indices
    far: Indices


@dataclass(frozen=True)
class Neighborhood:
    """Everything that the numbers of `extension` need to know about the graph around some new nodes."""

    balls: tuple[Ball, ...]
    touched: tuple[Indices, ...]
    """Positions of S in each ball."""
    new_degrees: Indices
    """Of the new nodes, self-loop included."""
    into_new: Links
    """Into every new node: sources are the new nodes, then S."""
    into_layer: tuple[Links, ...]
    """Into the ball of each recomputed layer 1 .. L-1: sources are the previous layer's ball, then the new nodes."""

    def ball(self, layer: int) -> Ball:
        return self.balls[radius(layer, len(self.into_layer) + 1)]

    def touched_in(self, layer: int) -> Indices:
        """Positions of S in that layer's ball."""
        return self.touched[radius(layer, len(self.into_layer) + 1)]

    def recomputed(self, num_scenarios: int) -> Indices:
        """Recomputed states, over all layers, per scenario."""
        counts = np.zeros(num_scenarios, dtype=np.int64)
        for layer in range(1, len(self.into_layer) + 1):
            counts += np.bincount(self.ball(layer).scenarios, minlength=num_scenarios)
        return counts

    @classmethod
    def around(cls, new: NewNodes, adjacency: Adjacency, layers: int, limit: int | None = None) -> Neighborhood:
        """Plans the recomputation for a GCN of `layers` layers; `layers=1` recomputes nothing (frozen neighbours).

        Raises:
            NeighborhoodTooLarge: all scenarios together would read more than `limit` adjacency entries, each node's own loop
                counted too. Known before they are read; where nothing is recomputed there is no limit.
        """
        budget = _Budget(new, limit if layers >= 2 else None)
        owners = np.repeat(np.arange(len(new)), new.counts)
        keys, touched_by = _grouped_keys(new.scenarios[owners] * adjacency.num_nodes + new.neighbors)
        gained = np.bincount(touched_by, minlength=len(keys))
        budget.spend(keys // adjacency.num_nodes, np.ones_like(keys))
        balls, walks = [_ball(keys, adjacency, np.arange(len(keys)), gained)], []
        touched = [np.arange(len(keys))]
        for _ in range(max(radius(layer, layers) for layer in range(layers)) if layers else 0):
            budget.spend(balls[-1].scenarios, balls[-1].degrees)
            keys, walk = _step(balls[-1], adjacency)
            touched.append(np.searchsorted(keys, balls[0].keys))
            balls.append(_ball(keys, adjacency, touched[-1], gained))
            walks.append(walk)
        into_layer = []
        for layer in range(1, layers):
            source, target = radius(layer - 1, layers), radius(layer, layers)
            if source == target:
                budget.spend(balls[source].scenarios, _search_costs(balls[source]))
            targets, sources = _changed_links(balls, walks, adjacency, source, target)
            into_layer.append(
                Links.grouped(
                    np.concatenate([targets, touched[target][touched_by]]),
                    np.concatenate([sources, len(balls[source].keys) + owners]),
                    len(balls[target].keys),
                )
            )
        into_new, new_degrees = _links_into_new(new, owners, touched_by)
        return cls(tuple(balls), tuple(touched), new_degrees, into_new, tuple(into_layer))


def _changed_links(
    balls: list[Ball], walks: list[Walk], adjacency: Adjacency, source: int, target: int
) -> tuple[Indices, Indices]:
    """(targets, sources) of all edges, each node to itself included, from the ball `source` into the ball `target`."""
    if target > source:
        return walks[source].far, walks[source].near
    if target < source:
        return walks[target].near, walks[target].far
    left, right = _edges_within(balls[target], adjacency)
    itself = np.arange(len(balls[target].keys))
    return np.concatenate([itself, left]), np.concatenate([itself, right])


def _links_into_new(new: NewNodes, owners: Indices, touched_by: Indices) -> tuple[Links, Indices]:
    itself, (left, right) = np.arange(len(new)), new.edges
    targets = np.concatenate([itself, owners, left, right])
    links = Links.grouped(targets, np.concatenate([itself, len(new) + touched_by, right, left]), len(new))
    return links, np.bincount(targets, minlength=len(new))


def _ball(keys: Indices, adjacency: Adjacency, touched: Indices, gained: NDArray[np.intp]) -> Ball:
    scenarios, nodes = np.divmod(keys, adjacency.num_nodes)
    degrees = adjacency.degrees(nodes) + 1
    new_degrees = degrees.copy()
    new_degrees[touched] += gained
    return Ball(keys, scenarios, nodes, degrees, new_degrees)


def _step(ball: Ball, adjacency: Adjacency) -> tuple[Indices, Walk]:
    """The next larger ball's keys, and the edges that lead there."""
    counts = ball.degrees - 1
    near = np.repeat(np.arange(len(ball.keys)), counts)
    reached = ball.scenarios[near] * adjacency.num_nodes + adjacency.neighbors(ball.nodes)
    keys, far = _grouped_keys(np.concatenate([ball.keys, reached]))
    return keys, Walk(np.concatenate([np.arange(len(ball.keys)), near]), far)


def _edges_within(ball: Ball, adjacency: Adjacency) -> tuple[Indices, Indices]:
    """Both directions of every edge inside the ball. A hub's list is never walked: its edges are found from the other end,
    and an edge between two hubs by bisection.
    """
    sizes, heavy = _sizes_and_hubs(ball)
    light = np.flatnonzero(~heavy & (sizes > 1))
    near = np.repeat(light, ball.degrees[light] - 1)
    wanted = ball.scenarios[near] * adjacency.num_nodes + adjacency.neighbors(ball.nodes[light])
    place = np.minimum(np.searchsorted(ball.keys, wanted), len(ball.keys) - 1)
    inside = ball.keys[place] == wanted if len(wanted) else np.zeros(0, dtype=bool)
    near, far = near[inside], place[inside]
    unseen = heavy[far]
    hub_left, hub_right = _linked_pairs(np.flatnonzero(heavy & (sizes > 1)), ball, adjacency)
    return (
        np.concatenate([near, far[unseen], hub_left]),
        np.concatenate([far, near[unseen], hub_right]),
    )


def _sizes_and_hubs(ball: Ball) -> tuple[Indices, NDArray[np.bool_]]:
    """For every node: how many nodes its scenario has in the ball, and whether its own list is too long to be walked."""
    sizes = np.bincount(ball.scenarios)[ball.scenarios] if len(ball.keys) else ball.keys
    return sizes, ball.degrees > BISECTION_COST * sizes


def _search_costs(ball: Ball) -> Indices:
    """What finding the edges inside the ball costs per node: its list, or for a hub one bisection per node of the ball."""
    sizes, heavy = _sizes_and_hubs(ball)
    return np.where(sizes > 1, np.where(heavy, BISECTION_COST * sizes, ball.degrees), 1)


def _linked_pairs(members: Indices, ball: Ball, adjacency: Adjacency) -> tuple[Indices, Indices]:
    """Which of these members of the ball are linked to each other, in both directions."""
    if len(members) < 2:
        return members[:0], members[:0]
    scenarios = ball.scenarios[members]
    counts = np.bincount(scenarios)[scenarios]
    left = np.repeat(members, counts)
    first = np.searchsorted(scenarios, scenarios)
    within = np.arange(len(left)) - np.repeat(run_starts(counts), counts)
    right = members[np.repeat(first, counts) + within]
    linked = (left != right) & adjacency.linked(ball.nodes[left], ball.nodes[right])
    return left[linked], right[linked]


def _grouped_keys(keys: Indices) -> tuple[Indices, Indices]:
    """The distinct keys in rising order, and the place of every given key among them."""
    distinct, inverse = np.unique(keys, return_inverse=True)
    return distinct, inverse


class _Budget:
    """The adjacency entries that one question may still read."""

    def __init__(self, new: NewNodes, limit: int | None) -> None:
        self._new, self._limit, self._spent = new, limit, 0

    def spend(self, scenarios: Indices, costs: Indices) -> None:
        """Raises NeighborhoodTooLarge, which names the new node that costs most."""
        self._spent += int(costs.sum())
        if self._limit is not None and self._spent > self._limit:
            worst = int(np.argmax(np.bincount(scenarios, weights=costs)))
            raise NeighborhoodTooLarge(int(np.searchsorted(self._new.scenarios, worst)), self._spent, self._limit)


def cost_of(new: NewNodes, adjacency: Adjacency, layers: int) -> int:
    """An estimate of the work of an exact answer in `layers` layers, about one unit per node whose state is read.

    With three layers the neighbours' lists are walked over. With two they are only searched, at about a sixteenth of the
    cost per entry. From four layers on an answer walks further than this function looks.
    """
    cost = len(new) + len(new.neighbors)
    if layers < 2 or not len(new.neighbors):
        return cost
    degrees = adjacency.degrees(new.neighbors)
    if layers > 2:
        return cost + int(degrees.sum())
    owners = np.repeat(new.scenarios, new.counts)
    sizes = np.bincount(owners)[owners]
    return cost + int(np.minimum(degrees // BISECTION_COST, sizes).sum())
