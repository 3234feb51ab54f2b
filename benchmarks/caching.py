"""When a cache is worth it: questions that are always found in it, and such that never are, against no cache."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.http import SMALL, known, new, publish, service, take_turns
from benchmarks.result import Result
from tests.service.redis_server import RedisServer

CACHE_BYTES = str(64 * 2**20)
TOO_FEW_BYTES = str(2**20)
"""For as many different questions, asked in turn: the one that comes next is always the one that was dropped last."""
MANY = 10_000


def caching() -> list[Result]:
    results = []
    with tempfile.TemporaryDirectory() as root, ExitStack() as stack:
        store, redis = publish(f"{root}/models", SMALL), RedisServer(Path(root))
        stack.callback(redis.kill)
        servers = {
            "none": stack.enter_context(service(store)),
            "local": stack.enter_context(service(store, cache_bytes=CACHE_BYTES, cache_known="true")),
            "redis": stack.enter_context(service(store, redis_url=redis.url, cache_known="true")),
        }
        for asked, bodies in (("known node", known(1)), ("100 known nodes", known(100)), ("exact new node", new(SMALL))):
            found = take_turns(servers, bodies)
            for kind, name in (("local", "the process's own cache"), ("redis", "Redis")):
                ratio = found[kind].rate / found["none"].rate
                claim = f"{asked}, always found in {name}: answers per second, against no cache"
                results.append(Result(claim, str(found[kind]), str(found["none"]), ratio, "", True))
    return results


def missing() -> list[Result]:
    results = []
    with tempfile.TemporaryDirectory() as root, ExitStack() as stack:
        store = publish(f"{root}/models", SMALL)
        servers = {
            "none": stack.enter_context(service(store)),
            "local": stack.enter_context(service(store, cache_bytes=TOO_FEW_BYTES, cache_known="true")),
        }
        one_each = [b'{"nodes": [%d]}' % node for node in range(MANY)]
        for asked, bodies in (("known node", one_each), ("100 known nodes", known(100, MANY))):
            found = take_turns(servers, bodies)
            ratio = found["local"].rate / found["none"].rate
            claim = f"{asked}, never found in the process's own cache: answers per second, against no cache"
            results.append(Result(claim, str(found["local"]), str(found["none"]), ratio, "", True))
    return results


CONTESTS: tuple[Callable[[], list[Result]], ...] = (caching, missing)
