"""When a cache is worth it: questions that always hit the cache, and questions that always miss it, against no cache."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.results import Result, higher_rate
from benchmarks.servers import service, serving, take_turns
from benchmarks.workload import SMALL, known_nodes, new_nodes
from tests.service.redis_server import RedisServer

CACHE_BYTES = str(64 * 2**20)
TOO_FEW_BYTES = str(2**20)
"""Less than MANY answers: when a question comes again in its turn, the cache has already evicted its answer."""
MANY = 10_000


def hits() -> list[Result]:
    results = []
    with tempfile.TemporaryDirectory() as root:
        redis = RedisServer(Path(root))
        starts = {
            "none": service,
            "the process's own cache": lambda store: service(store, cache_bytes=CACHE_BYTES, cache_known="true"),
            "Redis": lambda store: service(store, redis_url=redis.url, cache_known="true"),
        }
        kinds = {"known node": known_nodes(1), "100 known nodes": known_nodes(100), "exact new node": new_nodes(SMALL)}
        try:
            with serving(SMALL, starts) as servers:
                for kind, bodies in kinds.items():
                    loads = take_turns({name: (server, bodies) for name, server in servers.items()})
                    for cache in ("the process's own cache", "Redis"):
                        claim = f"{kind}, always found in {cache}: answers per second, against no cache"
                        results.append(higher_rate(claim, loads[cache], loads["none"]))
        finally:
            redis.kill()
    return results


def misses() -> list[Result]:
    results = []
    starts = {"none": service, "local": lambda store: service(store, cache_bytes=TOO_FEW_BYTES, cache_known="true")}
    with serving(SMALL, starts) as servers:
        single = [b'{"nodes": [%d]}' % node for node in range(MANY)]
        for kind, bodies in (("known node", single), ("100 known nodes", known_nodes(100, MANY))):
            loads = take_turns({name: (server, bodies) for name, server in servers.items()})
            claim = f"{kind}, never found in the process's own cache: answers per second, against no cache"
            results.append(higher_rate(claim, loads["local"], loads["none"]))
    return results
