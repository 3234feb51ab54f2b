"""When a cache is worth it: the same questions again and again, answered from a cache, against being computed.

Every look-up hits, which is the best that a cache can do; real questions repeat less often.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.http import SMALL, known, new, publish, service, take_turns
from benchmarks.result import Result
from tests.service.redis_server import RedisServer

CACHE_BYTES = str(64 * 2**20)


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


CONTESTS: tuple[Callable[[], list[Result]], ...] = (caching,)
