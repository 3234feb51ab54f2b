"""Writers and Redis killed and paused at random moments: no acknowledged change is lost, none is there twice.

50 kills, or 1,000 in `make soak` (SGF_LOG_KILLS).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from model_store.errors import LogError, StoreUnavailable
from model_store.graph_log import GraphLog, Record
from tests.model_store.graph_log.appenders import LEASE_SECONDS, open_log
from tests.model_store.graph_log.logs import read_all
from tests.service.redis_server import RedisServer
from tests.service.serving import until

KILLS = int(os.environ.get("SGF_LOG_KILLS", "50"))
WRITERS = 3
MOMENTS = random.Random(int(os.environ.get("SGF_LOG_SEED", "0")))  # noqa: S311  # moments, not secrets


class Appenders:
    """Several processes that append to one log; another one is started for each that is killed."""

    def __init__(self, zygote: subprocess.Popen[str]) -> None:
        self._zygote = zygote
        self._running = [self._start() for _ in range(WRITERS)]

    def kill_one(self) -> None:
        os.kill(self._running.pop(MOMENTS.randrange(WRITERS)), signal.SIGKILL)
        self._running.append(self._start())

    def pause_one(self, seconds: float) -> None:
        process = MOMENTS.choice(self._running)
        os.kill(process, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(process, signal.SIGCONT)

    def kill_all(self) -> None:
        for process in self._running:
            os.kill(process, signal.SIGKILL)
        until(lambda: not any(map(_exists, self._running)))

    def _start(self) -> int:
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        print("start", file=self._zygote.stdin, flush=True)
        return int(self._zygote.stdout.readline())


def _exists(process: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(process, 0)
        return True
    return False


@contextmanager
def appenders(acknowledged: Path, kind: str, place: str) -> Iterator[Appenders]:
    command = [sys.executable, "-m", "tests.model_store.graph_log.appenders", str(acknowledged), kind, place]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as zygote:
        started = Appenders(zygote)
        try:
            yield started
        finally:
            started.kill_all()
            assert zygote.stdin is not None
            zygote.stdin.close()
            zygote.wait(60)


def follow(log: GraphLog, delivered: list[Record]) -> None:
    with suppress(StoreUnavailable):
        delivered += read_all(log, after=len(delivered))


def check(acknowledged: Path, log: GraphLog, delivered: list[Record]) -> list[Record]:
    """Checks the log after all writers are dead: it has every acknowledged change."""
    records = check_order(log, delivered)
    lines = [line.split() for line in acknowledged.read_text().splitlines()]
    for sequence, key in lines:
        assert records[int(sequence) - 1].key == key, "an acknowledged change is lost"
    assert len(lines) > KILLS // 5, "too few changes were acknowledged between the kills"
    return records


def check_order(log: GraphLog, delivered: list[Record]) -> list[Record]:
    records = read_all(log)
    assert delivered == records[: len(delivered)], "a record that a reader has delivered disappeared"
    assert [record.sequence for record in records] == list(range(1, len(records) + 1))
    assert len({record.key for record in records}) == len(records), "a change is in the log twice"
    assert [record.fencing_number for record in records] == sorted(record.fencing_number for record in records)
    assert log.position() == (len(records), records[-1].hash)
    return records


def test_killed_and_paused_writers_of_a_file_log(tmp_path: Path) -> None:
    folder, acknowledged = tmp_path / "g", tmp_path / "acknowledged"
    reader, delivered, interrupted = open_log("file", str(folder)), list[Record](), 0
    with appenders(acknowledged, "file", str(folder)) as processes:
        for number in range(KILLS):
            time.sleep(MOMENTS.uniform(0, 0.1))
            processes.kill_one()
            follow(reader, delivered)
            if number % 10 == 5:
                processes.pause_one(2.5 * LEASE_SECONDS)
    records = check(acknowledged, open_log("file", str(folder)), delivered)
    interrupted = len(records) - len(acknowledged.read_text().splitlines())
    assert interrupted > 0, "no kill interrupted an append: nothing was tested"
    assert records[-1].fencing_number > 1


def kill_writers_and_redis(server: RedisServer, processes: Appenders) -> Iterator[None]:
    """Yields after each kill."""
    for number in range(KILLS // 5):
        time.sleep(MOMENTS.uniform(0, 0.1))
        processes.kill_one()
        yield
        if number % 10 == 5:
            processes.pause_one(2.5 * LEASE_SECONDS)
        if number % 4 == 3:
            server.kill()
            server.start()


def test_killed_writers_and_a_killed_redis(tmp_path: Path) -> None:
    """With appendfsync always; a power cut is not simulated."""
    acknowledged = tmp_path / "acknowledged"
    server = RedisServer(tmp_path, "--appendonly", "yes", "--appendfsync", "always")
    reader, delivered = open_log("redis", str(server.port)), list[Record]()
    try:
        with appenders(acknowledged, "redis", str(server.port)) as processes:
            for _ in kill_writers_and_redis(server, processes):
                follow(reader, delivered)
        server.kill()
        server.start()
        check(acknowledged, open_log("redis", str(server.port)), delivered)
    finally:
        server.kill()


def test_a_killed_redis_that_flushes_every_second_loses_no_change_silently(tmp_path: Path) -> None:
    """While a flush takes long, Redis delays writes for up to two seconds: a kill loses them. Readers notice."""
    server = RedisServer(tmp_path, "--appendonly", "yes", "--appendfsync", "everysec")
    reader, delivered = open_log("redis", str(server.port)), list[Record]()
    try:
        with appenders(tmp_path / "acknowledged", "redis", str(server.port)) as processes:
            for _ in kill_writers_and_redis(server, processes):
                with suppress(LogError):
                    follow(reader, delivered)
                    continue
                reader, delivered = open_log("redis", str(server.port)), []
        assert check_order(open_log("redis", str(server.port)), delivered)
    finally:
        server.kill()
