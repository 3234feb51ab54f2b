"""Caches of answers, local or in Redis. A cache that is slow, full or down costs a bounded delay, never an error.

A key has the id of the snapshot and the hash of the question, so an answer of one version is never returned for another.
"""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections import OrderedDict
from contextlib import suppress
from functools import partial
from typing import Any

from service.redis_connection import Backoff, cause_of, connection_options
from service.settings import Settings
from service.telemetry.metrics import Metrics

LOG = logging.getLogger("service.predict.cache")
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.25, 10.0
PULSE_SECONDS = 5.0
"""Time between two checks whether Redis answers."""
MAX_WRITES = 64
"""Concurrent writes to Redis; further answers are not cached."""
MAX_VALUE_BYTES = 1024 * 1024
"""Largest answer in Redis: compressing it blocks the event loop for 10 ms."""
ENTRY_BYTES = 300
"""Memory of an entry of the local cache in addition to its value."""


class LocalCache:
    """The most recently used answers of this process, up to a limit in bytes."""

    kind, available = "local", True

    def __init__(self, limit: int) -> None:
        self._limit, self._size = limit, 0
        self._values: OrderedDict[str, bytes] = OrderedDict()

    async def get(self, key: str) -> bytes | None:
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: str, value: bytes) -> None:
        if len(value) + ENTRY_BYTES > self._limit:
            return
        old = self._values.pop(key, None)
        self._size += len(value) + ENTRY_BYTES - (0 if old is None else len(old) + ENTRY_BYTES)
        self._values[key] = value
        while self._size > self._limit:
            self._size -= len(self._values.popitem(last=False)[1]) + ENTRY_BYTES


class RedisCache:
    """Shared by all workers. After a failure it is not used for a while, with exponential backoff."""

    kind = "redis"

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        self._client: Any = Redis.from_url(
            **connection_options(settings),
            socket_timeout=None,  # it limits each of the four steps of a new connection; `_in_time` limits their sum
            socket_connect_timeout=settings.redis_timeout_seconds,  # also limits closing a connection
            retry=Retry(NoBackoff(), 0),  # a second attempt would exceed the promised delay
        )
        self._in_time = partial(asyncio.timeout, settings.redis_timeout_seconds)
        self._ttl_ms = round(settings.cache_ttl_seconds * 1000)
        self._metrics = metrics
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._unused_until, self._read_only_until = 0.0, 0.0
        self._writes: set[asyncio.Task[None]] = set()

    @property
    def available(self) -> bool:
        """False during the backoff after a failure."""
        return time.monotonic() >= self._unused_until

    async def get(self, key: str) -> bytes | None:
        try:
            async with self._in_time():
                stored = await self._client.get(f"sgf:{key}")
        except Exception as error:  # the answer is computed instead
            self._note_failure(error)
            return None
        self._note_success()
        value = None if stored is None else _unpack(stored)
        if stored is not None and value is None:
            self._metrics.cache_errors.inc()
        return value

    def put(self, key: str, value: bytes) -> None:
        """Returns at once; a task writes the value."""
        can_write = self.available and len(self._writes) < MAX_WRITES and time.monotonic() >= self._read_only_until
        if can_write and len(value) <= MAX_VALUE_BYTES:
            task = asyncio.get_running_loop().create_task(self._write(key, value))
            self._writes.add(task)
            task.add_done_callback(self._writes.discard)

    async def _write(self, key: str, value: bytes) -> None:
        from redis.exceptions import ResponseError

        try:
            packed = _pack(value)
            async with self._in_time():
                await self._client.set(f"sgf:{key}", packed, px=self._ttl_ms)
        except ResponseError as error:  # Redis is full or a read-only replica: it can still be read
            self._metrics.cache_errors.inc()
            if time.monotonic() >= self._read_only_until:  # only the first of several concurrent failures is logged
                self._read_only_until = time.monotonic() + LONGEST_PAUSE_SECONDS
                LOG.warning("Redis refused a write (%s); writing again in %g s", cause_of(error), LONGEST_PAUSE_SECONDS)
        except Exception as error:  # the answer is not cached
            self._note_failure(error)

    async def close(self) -> None:
        """Drops unfinished writes."""
        for task in self._writes:
            task.cancel()
        with suppress(Exception):  # the process ends anyway
            await self._client.aclose()

    async def watch(self) -> None:
        """Keeps the gauge `sgf_cache_up` correct while no request uses the cache. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(PULSE_SECONDS)
            if self.available:
                try:
                    async with self._in_time():
                        await self._client.ping()
                except Exception as error:
                    self._note_failure(error)
                else:
                    self._note_success()

    def _note_success(self) -> None:
        if self._backoff.seconds:
            LOG.info("Redis answers again; the cache is in use")
            self._backoff.reset()
            self._metrics.cache_up.set(1)

    def _note_failure(self, error: Exception) -> None:
        self._metrics.cache_errors.inc()
        if self.available:  # else a concurrent request has failed before: the backoff grows only once
            self._metrics.cache_up.set(0)
            self._unused_until = time.monotonic() + self._backoff.grow()
            LOG.warning("Redis failed (%s); retrying in %g s", cause_of(error), self._backoff.seconds)


def _pack(value: bytes) -> bytes:
    compressed = zlib.compress(value, 1)
    return zlib.crc32(compressed).to_bytes(4, "little") + compressed


def _unpack(stored: bytes) -> bytes | None:
    """None for a value that this service did not write."""
    if len(stored) < 4 or zlib.crc32(stored[4:]).to_bytes(4, "little") != stored[:4]:
        return None
    decoder = zlib.decompressobj()
    try:
        value = decoder.decompress(stored[4:], MAX_VALUE_BYTES + 1)  # a forged value may expand to gigabytes
    except zlib.error:
        return None
    return value if decoder.eof else None


Cache = LocalCache | RedisCache


def cache_for(settings: Settings, metrics: Metrics) -> Cache | None:
    if settings.redis_url:
        return RedisCache(settings, metrics)
    return LocalCache(settings.cache_bytes) if settings.cache_bytes else None
