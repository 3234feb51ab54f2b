"""The live graph over HTTP: the latency of a commit, commits per second, and the latency of answers beside commits.

All commits are durable: the log is a file, and every group of commits is flushed. The model has two layers.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from http.client import HTTPConnection

import numpy as np

from benchmarks.graphs import debian_trixie, skewed
from benchmarks.load import Load, Stream, closed, request, side_by_side
from benchmarks.results import Loads, Result, at_least, at_most, format_seconds
from benchmarks.servers import Server, service, take_turns
from benchmarks.workload import FEATURES, LARGE, SMALL, Bodies, known_nodes, publish, publish_graph
from sgformer import Graph

KEY = "a-write-key-for-the-benchmarks"
NEIGHBORS, ROUNDS, SECONDS = 10, 7, 1.5
COMMITS = 10_000
ARXIV_NODES, ARXIV_EDGES, ARXIV_FEATURES = 169_343, 1_166_243, 128
BATCH, BATCHES = 1000, 60
REQUIRED_RATE, RIPPLE_RATE = 10_000, 28_000
CLIENTS = 16
COMMIT_RATE = 500.0
READERS, WRITERS = 1000, 100
"""Numbers of connections."""
BESIDE_ROUNDS, BESIDE_SECONDS = 5, 10.0
SHARES = (0.5, 0.25)
"""Of the capacity for known nodes without commits, when computed logits are kept. Beside commits, each one is computed."""


def one_commit() -> list[Result]:
    """A node with ten neighbours, in a graph of a million nodes and in one of ten thousand."""
    with tempfile.TemporaryDirectory() as root:
        stores = {nodes: publish(f"{root}/{nodes}", nodes) for nodes in (SMALL, LARGE)}
        with _service(stores[SMALL]) as small, _service(stores[LARGE]) as large:
            loads = {SMALL: Loads(), LARGE: Loads()}
            for number in range(ROUNDS + 1):
                for nodes, server in ((SMALL, small), (LARGE, large)):
                    commits = _commits(server, new_nodes(nodes, f"{number}"))
                    load = _answered(closed(server.port, commits, 1, SECONDS))
                    if number:  # the first round warms up
                        loads[nodes].append(load)
            sixteen = Loads()
            for number in range(3):
                sixteen.append(_answered(closed(small.port, _commits(small, new_nodes(SMALL, f"c{number}")), CLIENTS, 3.0)))
    claim = f"commit of a node with {NEIGHBORS} neighbours, p50: {LARGE:,} nodes against {SMALL:,}"
    ratio = loads[LARGE].quantile(0.5) / loads[SMALL].quantile(0.5)
    ours, against = loads[LARGE].latencies(0.5, 0.99), loads[SMALL].latencies(0.5, 0.99)
    alone = loads[SMALL].rate
    rates = f"durable commits of one node per second, {CLIENTS} clients against one"
    return [
        at_most(claim, ours, against, ratio, 1.3),
        at_least(rates, f"{sixteen.rate:,.0f}/s", f"{alone:,.0f}/s", sixteen.rate / alone),
    ]


def hub() -> list[Result]:
    """A node that is linked to the largest hub of debian_trixie, against one that is linked to ordinary nodes."""
    graph = debian_trixie()
    degrees = np.diff(graph.adjacency.indptr)
    ordinary = np.flatnonzero(degrees == np.median(degrees[degrees > 0]))
    with tempfile.TemporaryDirectory() as root, _service(publish_graph(root, graph, layers=2)) as server:
        loads = {"hub": Loads(), "ordinary": Loads()}
        for number in range(ROUNDS):
            for name, neighbors in (("hub", np.array([degrees.argmax()])), ("ordinary", ordinary)):
                bodies = _nodes(neighbors, 1, 128, f"{name}{number}")
                loads[name].append(_answered(closed(server.port, _commits(server, bodies), 1, SECONDS)))
    claim = (
        f"commit of a node at a hub of {degrees.max():,} edges, p50, against one at a node of {int(degrees[ordinary[0]])}"
    )
    ratio = loads["hub"].quantile(0.5) / loads["ordinary"].quantile(0.5)
    return [at_most(claim, loads["hub"].latencies(0.5, 0.99), loads["ordinary"].latencies(0.5, 0.99), ratio)]


def known_nodes_after_commits() -> list[Result]:
    """The latency of known nodes after many commits, and after their compaction, against a graph without changes."""
    with tempfile.TemporaryDirectory() as root:
        stores = {name: publish(f"{root}/{name}", SMALL) for name in ("unchanged", "changed", "compacted")}
        for name in ("changed", "compacted"):
            with _service(stores[name]) as server:
                _send_all(server, itertools.islice(new_nodes(SMALL, "o"), COMMITS))
        train = [sys.executable, "-m", "training", "refresh", "--store", stores["compacted"], "--data", "live", "--activate"]
        subprocess.run([*train, "--quiet"], check=True)
        with (
            _service(stores["unchanged"]) as first,
            _service(stores["changed"]) as second,
            _service(stores["compacted"]) as third,
        ):
            questions = known_nodes(1)
            loads = take_turns(
                {"unchanged": (first, questions), "changed": (second, questions), "compacted": (third, questions)}
            )
    quiet = loads["unchanged"]
    return [
        at_most(
            f"known node {state}, p50, against a graph without changes",
            loads[name].latencies(0.5, 0.99),
            quiet.latencies(0.5, 0.99),
            loads[name].quantile(0.5) / quiet.quantile(0.5),
            bar,
        )
        for name, state, bar in (
            ("changed", f"after {COMMITS:,} commits without compaction", 1.5),
            ("compacted", f"after the compaction of {COMMITS:,} commits", 1.1),
        )
    ]


def batches() -> list[Result]:
    """Operations per second in batches, on a generated graph of the size of ogbn-arxiv."""
    graph = skewed(ARXIV_NODES, ARXIV_EDGES, ARXIV_FEATURES)
    with tempfile.TemporaryDirectory() as root, _service(publish_graph(root, graph, layers=2)) as server:
        bodies = list(itertools.islice(_mixed_batches(graph), BATCHES + 2))
        seconds = list(_send(server, iter(bodies)))[2:]
    rate = BATCH / float(np.median(seconds))
    spread = f"{format_seconds(np.quantile(seconds, 0.25))} to {format_seconds(np.quantile(seconds, 0.75))} per batch"
    claim = f"operations applied per second, batches of {BATCH:,}, a graph of the size of ogbn-arxiv"
    return [
        at_least(
            f"{claim}: against {REQUIRED_RATE:,}/s",
            f"{rate:,.0f}/s ({spread})",
            f"{REQUIRED_RATE:,}/s",
            rate / REQUIRED_RATE,
            1.0,
        ),
        at_least(
            f"{claim}: against RIPPLE's published rate (no attention, not durable)",
            f"{rate:,.0f}/s",
            f"{RIPPLE_RATE:,}/s",
            rate / RIPPLE_RATE,
        ),
    ]


def beside_commits() -> list[Result]:
    """p99 of known nodes at shares of the capacity, with and without commits beside them."""
    return [_beside_commits(share) for share in SHARES]


def _beside_commits(share: float) -> Result:
    with tempfile.TemporaryDirectory() as root, _service(publish(root, SMALL)) as server:
        questions = server.requests(known_nodes(1))
        _send_all(server, itertools.islice(new_nodes(SMALL, "w"), 100))
        closed(server.port, questions, CLIENTS, 1.0)
        rate = share * closed(server.port, questions, CLIENTS, 5.0).rate
        quiet, beside, commits = Loads(), Loads(), Loads()
        for number in range(BESIDE_ROUNDS):
            stream = Stream(questions, rate, seed=number, connections=READERS)
            quiet += side_by_side(server.port, [stream], BESIDE_SECONDS)
            bodies = _commits(
                server, itertools.islice(new_nodes(SMALL, f"b{number}"), round(1.1 * COMMIT_RATE * BESIDE_SECONDS))
            )
            both = side_by_side(
                server.port, [stream, Stream(bodies, COMMIT_RATE, seed=number, connections=WRITERS)], BESIDE_SECONDS
            )
            beside.append(both[0])
            commits.append(both[1])
    load = f"{rate:,.0f}/s, {share:.0%} of the capacity,"
    claim = f"known node at {load} beside {COMMIT_RATE:g} commits per second: p99, against p99 without commits"
    ours = f"{beside.latencies(0.5, 0.99)}; commits: {commits.latencies(0.5, 0.99)}"
    answered = not (quiet.unanswered or beside.unanswered or commits.unanswered)
    ratio = beside.quantile(0.99) / quiet.quantile(0.99)
    return at_most(claim, ours, quiet.latencies(0.5, 0.99), ratio, 2.0, valid=answered)


def new_nodes(nodes: int, name: str) -> Iterator[bytes]:
    """Endless changes that add one node each, linked to random nodes."""
    return _nodes(np.arange(nodes), NEIGHBORS, FEATURES, name)


def _nodes(neighbors: np.ndarray, count: int, features: int, name: str) -> Iterator[bytes]:
    seed = sum(name.encode()) * 1000 + len(name)
    rng = np.random.default_rng(seed)
    first = 10**9 + int.from_bytes(name.encode()) % 10**6 * 10**6
    for node in itertools.count(first):
        values = rng.normal(size=features).round(4).tolist()
        linked = rng.choice(neighbors, count, replace=False).tolist()
        yield _body([{"op": "add_node", "id": node, "features": values, "neighbors": linked}])


def _mixed_batches(graph: Graph) -> Iterator[bytes]:
    """Batches of new edges, removed edges and new features, a third of each, as in RIPPLE's measurements."""
    rng = np.random.default_rng(0)
    edges = graph.adjacency.edge_index()
    existing = set(map(tuple, edges.T.tolist()))
    removable = iter(rng.permutation(edges[:, edges[0] < edges[1]], axis=1).T.tolist())
    while True:
        operations = []
        for number in range(BATCH):
            if number % 3 == 0:
                left, right = next(removable)
                operations.append({"op": "remove_edge", "source": left, "target": right})
            elif number % 3 == 1:
                left, right = rng.integers(0, graph.num_nodes, 2).tolist()
                while left == right or (left, right) in existing:
                    left, right = rng.integers(0, graph.num_nodes, 2).tolist()
                existing |= {(left, right), (right, left)}
                operations.append({"op": "add_edge", "source": left, "target": right})
            else:
                features = rng.normal(size=graph.num_features).round(4).tolist()
                operations.append({"op": "set_features", "id": int(rng.integers(graph.num_nodes)), "features": features})
        yield _body(operations)


def _body(operations: list[dict[str, object]]) -> bytes:
    return json.dumps({"operations": operations}).encode()


def _service(store: str) -> AbstractContextManager[Server]:
    return service(store, write_keys=KEY, compact_changes="0", max_body_weight="10000000")


def _commit(server: Server, body: bytes) -> bytes:
    return request(body, "/graph", server.port, f"authorization: Bearer {KEY}\r\n")


def _commits(server: Server, bodies: Iterator[bytes], count: int = 20_000) -> Bodies:
    return [_commit(server, body) for body in itertools.islice(bodies, count)]


def _send_all(server: Server, bodies: Iterator[bytes]) -> None:
    """Sends every commit once, over several connections at the same time."""
    shared = iter(list(bodies))
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(lambda _: list(_send(server, shared)), range(CLIENTS)))


def _send(server: Server, bodies: Iterator[bytes]) -> Iterator[float]:
    """Sends commits over one connection, one after another. Yields the seconds of each."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
    try:
        for body in bodies:
            start = time.perf_counter()
            connection.request("POST", "/graph", body, headers)
            response = connection.getresponse()
            answer = response.read()
            if response.status != 200:
                raise SystemExit(f"POST /graph answered {response.status}: {answer[:300]!r}")
            yield time.perf_counter() - start
    finally:
        connection.close()


def _answered(load: Load) -> Load:
    if set(load.statuses) != {200}:
        raise SystemExit(f"POST /graph answered {load.statuses}")
    return load
