"""Tail latency of ordinary requests while a few expensive ones are answered by the same worker.

The expensive ones are exact new nodes that are linked to the largest hub of debian_trixie: their answers walk over all of
its edges. Turns with and without them alternate and have the same arrivals; medians over the rounds are compared.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable

import numpy as np

from benchmarks.contest import duration
from benchmarks.graphs import debian_trixie
from benchmarks.http import CLASSES, service
from benchmarks.load import Load, Stream, closed, side_by_side
from benchmarks.result import Result
from benchmarks.servers import Server
from model_store import Contents, Store
from sgformer import Graph, ModelConfig, SGFormer

ROUNDS, SECONDS, LAYERS = 5, 10.0, 3
CAPACITY_CONNECTIONS, CAPACITY_SECONDS = 16, 5.0
SHARE, HUB_RATE = 0.5, 10.0
BARS = {"known node": 2.0, "ordinary exact new node": 3.0}
QUESTIONS, NEIGHBORS = 500, 5
ORDINARY_DEGREE, ORDINARY_NEIGHBOR_DEGREE = 5, 20
"""Ordinary new nodes are linked to nodes of at most that degree, with neighbours of at most that one."""


def mixed() -> list[Result]:
    graph = debian_trixie()
    config = ModelConfig(in_features=graph.features.shape[1], out_features=CLASSES, hidden=64, layers=LAYERS)
    with tempfile.TemporaryDirectory() as root:
        Store(root).publish("bench", Contents(config, SGFormer(config).weights(), graph), onnx=False, activate=True)
        with service(root) as server:
            degrees = np.diff(graph.adjacency.indptr)
            hub = server.requests(_new_nodes(graph, np.array([degrees.argmax()]), 1))
            asked = {
                "known node": server.requests([b'{"nodes": [%d]}' % node for node in _ordinary(graph)[:QUESTIONS]]),
                "ordinary exact new node": server.requests(_new_nodes(graph, _ordinary(graph), NEIGHBORS)),
            }
            rates = {kind: SHARE * _capacity(server, requests) for kind, requests in asked.items()}
            alone: dict[str, list[Load]] = {kind: [] for kind in asked}
            beside: dict[str, list[Load]] = {kind: [] for kind in asked}
            hubs: dict[str, list[Load]] = {kind: [] for kind in asked}
            for number in range(ROUNDS):
                for kind, requests in asked.items():
                    stream, heavy = (Stream(requests, rates[kind], seed=number), Stream(hub, HUB_RATE, seed=number))
                    alone[kind] += side_by_side(server.port, [stream], SECONDS)
                    both = side_by_side(server.port, [stream, heavy], SECONDS)
                    beside[kind].append(both[0])
                    hubs[kind].append(both[1])
    edges = int(degrees.max())
    return [
        _row(f"{kind} at {rates[kind]:,.0f}/s", edges, alone[kind], beside[kind], hubs[kind], BARS[kind]) for kind in asked
    ]


CONTESTS: tuple[Callable[[], list[Result]], ...] = (mixed,)


def _row(kind: str, edges: int, alone: list[Load], beside: list[Load], hubs: list[Load], bar: float) -> Result:
    claim = f"{kind}, beside {HUB_RATE:g}/s for an exact new node at a hub of {edges:,} edges: p99, against without"
    ratio = _median(beside, 0.99) / _median(alone, 0.99)
    answered = all(set(load.statuses) == {200} for load in (*alone, *beside, *hubs))
    shown = f"{_described(beside)}; the hub's own {_described(hubs)}", _described(alone)
    return Result(claim, *shown, ratio, f"<= {bar:g}x", ratio <= bar and answered)


def _described(loads: list[Load]) -> str:
    p50, p99, worst = (duration(_median(loads, share)) for share in (0.5, 0.99, 1.0))
    requests = sum(sum(load.statuses.values()) for load in loads)
    others = requests - sum(load.statuses.get(200, 0) for load in loads)
    return f"p50 {p50}, p99 {p99}, max {worst}" + (f"; {others:,} of {requests:,} NOT answered" if others else "")


def _median(loads: list[Load], share: float) -> float:
    return float(np.median([load.quantile(share) for load in loads]))


def _capacity(server: Server, requests: list[bytes]) -> float:
    closed(server.port, requests, CAPACITY_CONNECTIONS, 1.0)
    return closed(server.port, requests, CAPACITY_CONNECTIONS, CAPACITY_SECONDS).rate


def _ordinary(graph: Graph) -> np.ndarray:
    """Nodes of a low degree, none of whose neighbours is a hub."""
    starts, others = graph.adjacency.indptr, graph.adjacency.indices
    degrees = np.diff(starts)
    low = np.flatnonzero((degrees >= 1) & (degrees <= ORDINARY_DEGREE))
    return np.array(
        [node for node in low if degrees[others[starts[node] : starts[node + 1]]].max() <= ORDINARY_NEIGHBOR_DEGREE]
    )


def _new_nodes(graph: Graph, neighbors: np.ndarray, count: int) -> list[bytes]:
    """Questions about one new node each, with the features of a known one."""
    rng = np.random.default_rng(0)
    features = np.asarray(graph.features[:QUESTIONS]).round(4)
    nodes = [
        {"id": "a", "features": row.tolist(), "neighbors": rng.choice(neighbors, count, replace=False).tolist()}
        for row in features
    ]
    return [json.dumps({"new_nodes": [node]}).encode() for node in nodes]
