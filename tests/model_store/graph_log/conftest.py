from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from model_store.graph_log import FileLog, GraphLog
from model_store.graph_log.redis_log import RedisLog
from tests.service.redis_server import RedisServer

OpenLog = Callable[[], GraphLog]
_numbers = itertools.count()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("graph_log_redis"))
    yield server
    server.kill()


@pytest.fixture(params=["file", "redis"])
def open_log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenLog]:
    """Opens the same empty log again and again, as other processes would. Leases last half a second."""
    opened: list[GraphLog] = []
    if request.param == "redis":
        server, name = request.getfixturevalue("redis_server"), f"demo:{next(_numbers)}"

    def open_again() -> GraphLog:
        if request.param == "file":
            opened.append(FileLog(tmp_path / "demo" / "graph_log" / "g", lease_seconds=0.5, segment_bytes=2_000))
        else:
            opened.append(RedisLog(redis.Redis(port=server.port), name, lease_seconds=0.5))
        return opened[-1]

    yield open_again
    for log in opened:
        log.close()
        if isinstance(log, RedisLog):
            log.client.close()


@pytest.fixture
def log(open_log: OpenLog) -> GraphLog:
    return open_log()
