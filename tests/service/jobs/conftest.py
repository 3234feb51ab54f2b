"""A Redis of its own for each module of tests, and a client of it that finds it empty."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from tests.service.redis_server import RedisServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture
def redis(server: RedisServer) -> Iterator[Redis]:
    with Redis.from_url(server.url, decode_responses=True) as client:
        client.flushall()
        yield client
