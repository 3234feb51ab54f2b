"""/predict against an empty endpoint, a plain FastAPI handler, and other model servers: answers per second."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack

from benchmarks.http_peers import PEERS, check_agreement, peer
from benchmarks.results import Result, at_most, higher_rate
from benchmarks.servers import floor, service, serving, take_turns
from benchmarks.workload import DEGREE, LARGE, SMALL, known_nodes, new_nodes, publish


def predict() -> list[Result]:
    results = []
    with tempfile.TemporaryDirectory() as root, ExitStack() as stack:
        small, large = (publish(f"{root}/{nodes}", nodes) for nodes in (SMALL, LARGE))
        empty, plain = (stack.enter_context(floor(large, name)) for name in ("floor", "plain"))
        ours, ours_small = (stack.enter_context(service(store)) for store in (large, small))
        peers = {name: stack.enter_context(peer(name, large)) for name in PEERS}
        against = {"the empty endpoint": empty, "a plain FastAPI handler": plain, **peers}
        for claim, bodies, bar in (
            ("known node, batch 1", known_nodes(1), 1.0),
            ("known nodes, batch 100, with probabilities", known_nodes(100), 0.6),
            (f"exact new node, degree {DEGREE}, 2 layers, N = {LARGE:,}", new_nodes(LARGE), 0.4),
        ):
            check_agreement(plain, (ours, *peers.values()), bodies[0])
            loads = take_turns({name: (server, bodies) for name, server in {"ours": ours, **against}.items()})
            bars = {"the empty endpoint": bar}
            results += [
                higher_rate(f"{claim}: against {name}", loads["ours"], loads[name], bars.get(name)) for name in against
            ]
        loads = take_turns({"large": (ours, new_nodes(LARGE)), "small": (ours_small, new_nodes(SMALL))})
        claim = f"exact new node over HTTP: time at N = {LARGE:,} against N = {SMALL:,}"
        ratio = loads["small"].rate / loads["large"].rate
        results.append(at_most(claim, loads["large"], loads["small"], ratio, 1.2))
    return results


def inline() -> list[Result]:
    """Cheap batches are answered on the event loop: the switch to a thread and back costs more than the batch."""
    starts = {"event loop": service, "thread": lambda store: service(store, inline_cost="0")}
    with serving(SMALL, starts) as servers:
        loads = take_turns({name: (server, new_nodes(SMALL)) for name, server in servers.items()})
    claim = "exact new node, answered on the event loop: against in a thread (`SGF_INLINE_COST=0`)"
    return [higher_rate(claim, loads["event loop"], loads["thread"])]
