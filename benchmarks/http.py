"""/predict against an empty endpoint, a plain FastAPI handler, and other model servers, one worker each, 16 connections.

Servers run in processes of their own and take turns under load; what counts is answers per second, as a ratio to the floor.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from benchmarks.contest import duration
from benchmarks.graphs import uniform
from benchmarks.http_peers import PEERS, check_agreement, peer
from benchmarks.load import Load, closed
from benchmarks.result import Result
from benchmarks.servers import Server, free_port, running
from model_store import Contents, Store
from sgformer import ModelConfig, SGFormer

CONNECTIONS, ROUNDS, SECONDS = 16, 7, 1.5
FEATURES, CLASSES, DEGREE = 64, 10, 10
SMALL, LARGE = 10_000, 1_000_000
Bodies = list[bytes]


@dataclass
class Measured:
    """The loads of one contestant over all rounds."""

    loads: list[Load]

    @property
    def rate(self) -> float:
        return float(np.median([load.rate for load in self.loads]))

    def __str__(self) -> str:
        low, high = np.quantile([load.rate for load in self.loads], [0.25, 0.75])
        p50, p99, worst = (float(np.median([load.quantile(share) for load in self.loads])) for share in (0.5, 0.99, 1.0))
        spread = f"{self.rate:,.0f}/s ({low:,.0f} to {high:,.0f})"
        return f"{spread}; p50 {duration(p50)}, p99 {duration(p99)}, max {duration(worst)}"


def predict() -> list[Result]:
    results = []
    with tempfile.TemporaryDirectory() as root, ExitStack() as stack:
        small, large = (publish(f"{root}/{nodes}", nodes) for nodes in (SMALL, LARGE))
        empty, plain = (stack.enter_context(floor(name, large)) for name in ("floor", "plain"))
        ours, ours_small = (stack.enter_context(service(store)) for store in (large, small))
        peers = {name: stack.enter_context(peer(name, large)) for name in PEERS}
        for claim, bodies, bar in (
            ("known node, batch 1", known(1), 1.0),
            ("known nodes, batch 100, with probabilities", known(100), 0.6),
            (f"exact new node, degree {DEGREE}, 2 layers, N = {LARGE:,}", new(LARGE), 0.4),
        ):
            check_agreement(plain, (ours, *peers.values()), bodies[0])
            found = take_turns({"ours": ours, "floor": empty, "plain": plain, **peers}, bodies)
            results.append(_at_least(f"{claim}: against the empty endpoint", found["ours"], found["floor"], bar))
            results.append(_at_least(f"{claim}: against a plain FastAPI handler", found["ours"], found["plain"], None))
            results += [_at_least(f"{claim}: against {name}", found["ours"], found[name], None) for name in peers]
        pair = {"large": (ours, new(LARGE)), "small": (ours_small, new(SMALL))}
        both = {name: Measured([]) for name in pair}
        for _ in range(ROUNDS):
            for name, (server, bodies) in pair.items():
                both[name].loads.append(closed(server.port, server.requests(bodies), CONNECTIONS, SECONDS))
        ratio = both["small"].rate / both["large"].rate
        claim = f"exact new node over HTTP: time at N = {LARGE:,} against N = {SMALL:,}"
        results.append(Result(claim, str(both["large"]), str(both["small"]), ratio, "<= 1.2x", ratio <= 1.2))
    return results


def inline() -> list[Result]:
    """Cheap batches are answered on the event loop: a hop to a thread and back costs more than they do."""
    with tempfile.TemporaryDirectory() as root, ExitStack() as stack:
        store = publish(root, SMALL)
        servers = {
            "here": stack.enter_context(service(store)),
            "thread": stack.enter_context(service(store, inline_cost="0")),
        }
        found = take_turns(servers, new(SMALL))
    claim = "exact new node, answered on the event loop: against in a thread (`SGF_INLINE_COST=0`)"
    return [_at_least(claim, found["here"], found["thread"], None)]


CONTESTS: tuple[Callable[[], list[Result]], ...] = (predict, inline)


def take_turns(servers: dict[str, Server], bodies: Bodies) -> dict[str, Measured]:
    found = {name: Measured([]) for name in servers}
    for round_number in range(ROUNDS + 1):
        for name, server in servers.items():
            load = closed(server.port, server.requests(bodies), CONNECTIONS, SECONDS if round_number else 0.5)
            if set(load.statuses) != {200}:
                raise SystemExit(f"{name} answered {load.statuses}")
            if round_number:
                found[name].loads.append(load)
    return found


def known(count: int, questions: int = 200) -> Bodies:
    rng = np.random.default_rng(0)
    return [json.dumps({"nodes": rng.integers(0, SMALL, count).tolist()}).encode() for _ in range(questions)]


def new(nodes: int) -> Bodies:
    rng = np.random.default_rng(1)
    return [
        json.dumps(
            {
                "new_nodes": [
                    {
                        "id": "a",
                        "features": rng.normal(size=FEATURES).round(4).tolist(),
                        "neighbors": rng.integers(0, nodes, DEGREE).tolist(),
                    }
                ]
            }
        ).encode()
        for _ in range(500)
    ]


def publish(store: str, nodes: int) -> str:
    graph = uniform(nodes, 5 * nodes, FEATURES)
    config = ModelConfig(in_features=FEATURES, out_features=CLASSES, hidden=64, layers=2)
    Store(store).publish("bench", Contents(config, SGFormer(config).weights(), graph), onnx=False, activate=True)
    return store


@contextmanager
def service(store: str, own_session: bool = True, protocol: str = "", **settings: str) -> Iterator[Server]:
    """`sgf-serve` with everything on but the cache, which would answer instead of the engine; its log goes nowhere.

    Args:
        protocol: MODULE:CLASS of an HTTP protocol to use in place of the service's own.
    """
    port = free_port()
    environ = (
        dict(os.environ) | {"SGF_CACHE_BYTES": "0"} | {f"SGF_{name.upper()}": value for name, value in settings.items()}
    )
    program = ["benchmarks.launcher", protocol] if protocol else ["service"]
    command = [sys.executable, "-m", *program, "--store", store, "--port", str(port)]
    with running(command, port, environ, own_session=own_session) as found:
        yield found


@contextmanager
def floor(name: str, store: str) -> Iterator[Server]:
    """A server of `benchmarks.http_floors`: "floor" or "plain"."""
    port = free_port()
    with running([sys.executable, "-m", "benchmarks.http_floors", name, str(port), store], port, dict(os.environ)) as found:
        yield found


def _at_least(claim: str, ours: Measured, theirs: Measured, bar: float | None) -> Result:
    ratio = ours.rate / theirs.rate
    return Result(claim, str(ours), str(theirs), ratio, f">= {bar:g}x" if bar else "", not bar or ratio >= bar)
