"""Which stored states a new node changes, and which of them its answer needs. Integers only.

The anchors B are the known neighbours of the new node, and N^r[B] is the ball of all nodes within r hops of B. After layer l
the changed states are N^l[B], and the answer needs N^{L-1-l}[B]: only the intersection N^{min(l, L-1-l)}[B] is recomputed
(docs/mathematics.md section 4). A recomputed node adds the changes of its neighbours to its stored aggregate, so the
neighbour list of a hub is not read just because the hub is an anchor.

A batch is a disjoint union of graphs: every set holds (scenario, node) pairs, encoded as scenario * N + node.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sgformer.adjacency import NeighborLists
from sgformer.arrays.operations import Array, Indices, ops_for, run_starts
from sgformer.errors import NeighborhoodTooLarge
from sgformer.request_time.new_nodes import NewNodes

BISECTION_COST = 16
"""Testing a pair of nodes by bisection costs about as much as reading this many neighbours."""


def radius(layer: int, layers: int) -> int:
    """The radius, in hops, of the ball around the anchors whose states after this layer are recomputed."""
    return min(layer, layers - 1 - layer)


@dataclass(frozen=True)
class Ball:
    """The nodes within some hops of the anchors, in every scenario, sorted by scenario and node."""

    keys: Indices
    scenarios: Indices
    nodes: Indices
    degrees: Indices
    """Degrees in the stored graph, with the self-loop."""
    new_degrees: Indices
    """Degrees with the edges of the new nodes added."""


@dataclass(frozen=True)
class Links:
    """Directed edges and self-loops, grouped by the node that receives (target). Every target has at least one source."""

    sources: Indices
    """The position of the sending node of each link."""
    starts: Indices
    """Where the links of each target begin."""

    @classmethod
    def grouped(cls, targets: Indices, sources: Indices, num_targets: int) -> Links:
        # Stable, so that the order in which the sources of a target are added, and so its bits, do not depend on the batch.
        order = np.argsort(targets, kind="stable")
        return cls(sources[order], run_starts(np.bincount(targets, minlength=num_targets)))

    def sum(self, rows: Array) -> Array:
        """The sum over the sources of every target."""
        ops = ops_for(rows)
        return ops.segment_sum(ops.take(rows, self.sources), self.starts)


@dataclass(frozen=True)
class Neighborhood:
    """The part of the graph around some new nodes that `extension` computes on."""

    balls: tuple[Ball, ...]
    """The balls by radius; the first holds the anchors."""
    anchors: tuple[Indices, ...]
    """The positions of the anchors in each ball."""
    new_degrees: Indices
    """The degrees of the new nodes, with their self-loops."""
    into_new: Links
    """The links into every new node. Sources are numbered in this order: the new nodes, the anchors."""
    into_layer: tuple[Links, ...]
    """The links into the ball of each recomputed layer 1 .. L-1. Sources are numbered in this order: the ball of the layer
    before, the new nodes."""

    def ball(self, layer: int) -> Ball:
        return self.balls[radius(layer, len(self.into_layer) + 1)]

    def anchors_in(self, layer: int) -> Indices:
        """The positions of the anchors in the ball of this layer."""
        return self.anchors[radius(layer, len(self.into_layer) + 1)]

    def recomputed(self, num_scenarios: int) -> Indices:
        """The number of recomputed states, over all layers, per scenario."""
        counts = np.zeros(num_scenarios, dtype=np.int64)
        for layer in range(1, len(self.into_layer) + 1):
            counts += np.bincount(self.ball(layer).scenarios, minlength=num_scenarios)
        return counts

    @classmethod
    def around(cls, new: NewNodes, adjacency: NeighborLists, layers: int, limit: int | None = None) -> Neighborhood:
        """Plans the recomputation for a GCN of `layers` layers; with one layer, as in frozen mode, nothing is recomputed.

        Raises:
            NeighborhoodTooLarge: all scenarios together would read more than `limit` adjacency entries, self-loops included.
                Raised before they are read, and never if nothing is recomputed.
        """
        budget = _Budget(new, limit if layers >= 2 else None)
        owners = np.repeat(np.arange(len(new)), new.counts)
        keys, anchor_of_link = np.unique(new.scenarios[owners] * adjacency.num_nodes + new.neighbors, return_inverse=True)
        added_degrees = np.bincount(anchor_of_link, minlength=len(keys))
        budget.spend(keys // adjacency.num_nodes, np.ones_like(keys))
        anchors, steps = [np.arange(len(keys))], []
        balls = [_ball(keys, adjacency, anchors[0], added_degrees)]
        for _ in range(max(radius(layer, layers) for layer in range(layers)) if layers else 0):
            budget.spend(balls[-1].scenarios, balls[-1].degrees)
            keys, step = _expand(balls[-1], adjacency)
            anchors.append(np.searchsorted(keys, balls[0].keys))
            balls.append(_ball(keys, adjacency, anchors[-1], added_degrees))
            steps.append(step)
        into_layer = []
        for layer in range(1, layers):
            source, target = radius(layer - 1, layers), radius(layer, layers)
            if source == target:
                budget.spend(balls[source].scenarios, _search_costs(balls[source]))
            targets, sources = _links_between(balls, steps, adjacency, source, target)
            into_layer.append(
                Links.grouped(
                    np.concatenate([targets, anchors[target][anchor_of_link]]),
                    np.concatenate([sources, len(balls[source].keys) + owners]),
                    len(balls[target].keys),
                )
            )
        into_new, new_degrees = _links_into_new(new, owners, anchor_of_link)
        return cls(tuple(balls), tuple(anchors), new_degrees, into_new, tuple(into_layer))


def _links_between(
    balls: list[Ball], steps: list[tuple[Indices, Indices]], adjacency: NeighborLists, source: int, target: int
) -> tuple[Indices, Indices]:
    """(targets, sources) of all edges and self-loops from the ball of radius `source` into the ball of radius `target`."""
    if source != target:
        inner, outer = steps[min(source, target)]
        return (outer, inner) if target > source else (inner, outer)
    left, right = _edges_within(balls[target], adjacency)
    loops = np.arange(len(balls[target].keys))
    return np.concatenate([loops, left]), np.concatenate([loops, right])


def _links_into_new(new: NewNodes, owners: Indices, anchor_of_link: Indices) -> tuple[Links, Indices]:
    """The links into the new nodes, and the degrees of the new nodes."""
    loops, (left, right) = np.arange(len(new)), new.edges
    targets = np.concatenate([loops, owners, left, right])
    links = Links.grouped(targets, np.concatenate([loops, len(new) + anchor_of_link, right, left]), len(new))
    return links, np.bincount(targets, minlength=len(new))


def _ball(keys: Indices, adjacency: NeighborLists, anchors: Indices, added_degrees: NDArray[np.intp]) -> Ball:
    scenarios, nodes = np.divmod(keys, adjacency.num_nodes)
    degrees = adjacency.degrees(nodes) + 1
    new_degrees = degrees.copy()
    new_degrees[anchors] += added_degrees
    return Ball(keys, scenarios, nodes, degrees, new_degrees)


def _expand(ball: Ball, adjacency: NeighborLists) -> tuple[Indices, tuple[Indices, Indices]]:
    """The keys of the next larger ball, and the edges and self-loops from this ball to it, as positions in both."""
    inner = np.repeat(np.arange(len(ball.keys)), ball.degrees - 1)
    reached = ball.scenarios[inner] * adjacency.num_nodes + adjacency.neighbors(ball.nodes)
    keys, outer = np.unique(np.concatenate([ball.keys, reached]), return_inverse=True)
    return keys, (np.concatenate([np.arange(len(ball.keys)), inner]), outer)


def _edges_within(ball: Ball, adjacency: NeighborLists) -> tuple[Indices, Indices]:
    """Both directions of every edge inside the ball.

    The neighbour list of a hub is not read: its edges are found in other lists, or between two hubs by bisection.
    """
    sizes, is_hub = _sizes_and_hubs(ball)
    ordinary = np.flatnonzero(~is_hub & (sizes > 1))
    left = np.repeat(ordinary, ball.degrees[ordinary] - 1)
    keys = ball.scenarios[left] * adjacency.num_nodes + adjacency.neighbors(ball.nodes[ordinary])
    right = np.minimum(np.searchsorted(ball.keys, keys), len(ball.keys) - 1)
    inside = ball.keys[right] == keys if len(keys) else np.zeros(0, dtype=bool)
    left, right = left[inside], right[inside]
    to_hub = is_hub[right]
    hub_left, hub_right = _linked_pairs(np.flatnonzero(is_hub & (sizes > 1)), ball, adjacency)
    return np.concatenate([left, right[to_hub], hub_left]), np.concatenate([right, left[to_hub], hub_right])


def _sizes_and_hubs(ball: Ball) -> tuple[Indices, NDArray[np.bool_]]:
    """For every node: how many nodes of its scenario the ball holds, and whether its neighbour list is too long to read."""
    sizes = np.bincount(ball.scenarios)[ball.scenarios] if len(ball.keys) else ball.keys
    return sizes, ball.degrees > BISECTION_COST * sizes


def _search_costs(ball: Ball) -> Indices:
    """The cost of `_edges_within` per node: the length of its list, or for a hub a bisection per node of its scenario."""
    sizes, is_hub = _sizes_and_hubs(ball)
    return np.where(sizes > 1, np.where(is_hub, BISECTION_COST * sizes, ball.degrees), 1)


def _linked_pairs(members: Indices, ball: Ball, adjacency: NeighborLists) -> tuple[Indices, Indices]:
    """Both directions of every edge between these members of the ball, by bisection."""
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


class _Budget:
    """The adjacency entries that a request may still read."""

    def __init__(self, new: NewNodes, limit: int | None) -> None:
        self._new, self._limit, self._spent = new, limit, 0

    def spend(self, scenarios: Indices, costs: Indices) -> None:
        """Raises NeighborhoodTooLarge, which names the first new node of the most expensive scenario."""
        self._spent += int(costs.sum())
        if self._limit is not None and self._spent > self._limit:
            worst = int(np.argmax(np.bincount(scenarios, weights=costs)))
            raise NeighborhoodTooLarge(int(np.searchsorted(self._new.scenarios, worst)), self._spent, self._limit)


def cost_of(new: NewNodes, adjacency: NeighborLists, layers: int) -> int:
    """Estimates the work of an exact answer. The unit is about the work of reading the state of one node.

    With two layers, only the edges between anchors are needed: for each anchor, a scan of its neighbour list (a sixteenth of
    a unit per entry) or a bisection per other anchor, whichever is cheaper. With three layers the states of all neighbours
    are read. More layers need more hops, which the estimate leaves out.
    """
    cost = len(new) + len(new.neighbors)
    if layers < 2 or not len(new.neighbors):
        return cost
    degrees = adjacency.degrees(new.neighbors)
    if layers > 2:
        return cost + int(degrees.sum())
    if new.num_scenarios == 1:
        return cost + int(np.minimum(degrees // BISECTION_COST, len(degrees)).sum())
    owners = np.repeat(new.scenarios, new.counts)
    sizes = np.bincount(owners)[owners]
    return cost + int(np.minimum(degrees // BISECTION_COST, sizes).sum())
