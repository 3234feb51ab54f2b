"""A Redis server for each test module, and a client that finds it empty."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest
from redis import Redis

from tests.service.jobs.retraining import processes
from tests.service.redis_server import RedisServer


@pytest.fixture(scope="module", autouse=True)
def _kill_remaining_trainings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The training of a failed test outlives the service, and would slow down all other tests."""
    yield
    for pid in processes(f"--events={tmp_path_factory.getbasetemp()}{os.sep}"):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


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
