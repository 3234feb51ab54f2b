"""Tail latency of ordinary requests while the same worker answers a few expensive ones.

The expensive requests are exact new nodes that are linked to the largest hub of debian_trixie: their answers visit all edges
of the hub. Turns with and without them alternate and have the same arrivals.
"""

from __future__ import annotations

import tempfile

import numpy as np

from benchmarks.graphs import debian_trixie
from benchmarks.load import Stream, closed, side_by_side
from benchmarks.results import Loads, Result, at_most
from benchmarks.servers import Server, service
from benchmarks.workload import Bodies, new_node, publish_graph
from sgformer import Graph

ROUNDS, SECONDS, LAYERS = 5, 10.0, 3
CAPACITY_CONNECTIONS, CAPACITY_SECONDS = 16, 5.0
SHARE, HUB_RATE = 0.5, 10.0
BARS = {"known node": 2.0, "ordinary exact new node": 3.0}
QUESTIONS, NEIGHBORS = 500, 5
ORDINARY_DEGREE, ORDINARY_NEIGHBOR_DEGREE = 5, 20
"""Ordinary new nodes are linked to nodes of at most the first degree, whose neighbours have at most the second."""


def mixed() -> list[Result]:
    graph = debian_trixie()
    with tempfile.TemporaryDirectory() as root, service(publish_graph(root, graph, LAYERS)) as server:
        degrees = np.diff(graph.adjacency.indptr)
        ordinary = _ordinary_nodes(graph)
        hub = server.requests(_new_nodes(graph, np.array([degrees.argmax()]), 1))
        requests = {
            "known node": server.requests([b'{"nodes": [%d]}' % node for node in ordinary[:QUESTIONS]]),
            "ordinary exact new node": server.requests(_new_nodes(graph, ordinary, NEIGHBORS)),
        }
        rates = {kind: SHARE * _capacity(server, requests[kind]) for kind in requests}
        loads = {kind: (Loads(), Loads(), Loads()) for kind in requests}
        for number in range(ROUNDS):
            for kind, (alone, beside, hubs) in loads.items():
                stream = Stream(requests[kind], rates[kind], seed=number)
                alone += side_by_side(server.port, [stream], SECONDS)
                both = side_by_side(server.port, [stream, Stream(hub, HUB_RATE, seed=number)], SECONDS)
                beside.append(both[0])
                hubs.append(both[1])
    edges = int(degrees.max())
    return [_row(f"{kind} at {rates[kind]:,.0f}/s", edges, *loads[kind], BARS[kind]) for kind in loads]


def _row(kind: str, edges: int, alone: Loads, beside: Loads, hubs: Loads, bar: float) -> Result:
    others = f"{HUB_RATE:g}/s for an exact new node at a hub of {edges:,} edges"
    claim = f"{kind}, beside {others}: p99, against p99 without these requests"
    ratio = beside.quantile(0.99) / alone.quantile(0.99)
    ours = f"{_describe(beside)}; requests at the hub: {_describe(hubs)}"
    answered = not any(loads.unanswered for loads in (alone, beside, hubs))
    return at_most(claim, ours, _describe(alone), ratio, bar, valid=answered)


def _describe(loads: Loads) -> str:
    unanswered = f"; {loads.unanswered:,} of {loads.statuses.total():,} NOT answered" if loads.unanswered else ""
    return loads.latencies(0.5, 0.99, 1.0) + unanswered


def _capacity(server: Server, requests: Bodies) -> float:
    closed(server.port, requests, CAPACITY_CONNECTIONS, 1.0)
    return closed(server.port, requests, CAPACITY_CONNECTIONS, CAPACITY_SECONDS).rate


def _ordinary_nodes(graph: Graph) -> np.ndarray:
    """Returns nodes of a low degree, none of whose neighbours is a hub."""
    starts, others = graph.adjacency.indptr, graph.adjacency.indices
    degrees = np.diff(starts)
    low = np.flatnonzero((degrees >= 1) & (degrees <= ORDINARY_DEGREE))
    return np.array(
        [node for node in low if degrees[others[starts[node] : starts[node + 1]]].max() <= ORDINARY_NEIGHBOR_DEGREE]
    )


def _new_nodes(graph: Graph, neighbors: np.ndarray, count: int) -> Bodies:
    """Returns questions about one new node each, with the features of a known node."""
    rng = np.random.default_rng(0)
    features = np.asarray(graph.features[:QUESTIONS]).round(4)
    return [new_node(row, rng.choice(neighbors, count, replace=False)) for row in features]
