"""Forks processes that append to one log, to be killed and paused. Only this process imports the modules.

`python -m tests.model_store.graph_log.appenders ACKNOWLEDGED file FOLDER` or `... redis PORT` starts a process for every
line of standard input and prints its id. Each process appends groups of changes with unique payloads, again with the same
keys after an error, and writes to ACKNOWLEDGED a line for every change whose append returned.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from pathlib import Path

import redis

from model_store.errors import Behind, Fenced, StoreUnavailable
from model_store.graph_log import FileLog, GraphLog
from model_store.graph_log.redis_log import RedisLog

LEASE_SECONDS = 0.25


def open_log(kind: str, place: str) -> GraphLog:
    if kind == "file":
        return FileLog(Path(place), lease_seconds=LEASE_SECONDS, segment_bytes=20_000)
    client = redis.Redis(port=int(place), socket_timeout=5, socket_connect_timeout=5)
    return RedisLog(client, "killed", lease_seconds=LEASE_SECONDS)


def append_for_ever(log: GraphLog, acknowledged: int) -> None:
    for number in itertools.count():
        size = 1 + number % 3
        names = [f"{os.getpid()}-{time.time_ns()}-{number}-{part}" for part in range(size)]
        entries = [(name, name.encode() * (1 + number % 7)) for name in names]
        while True:
            try:
                with log.writer(timeout=10) as writer:
                    records = writer.append(entries, log.position().sequence)
                break
            except (Fenced, Behind, StoreUnavailable):
                time.sleep(0.01)
        lines = [f"{record.sequence} {record.key}\n" for record in records]
        os.write(acknowledged, "".join(lines).encode())


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children
    acknowledged = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                append_for_ever(open_log(*sys.argv[2:]), acknowledged)
            finally:
                os._exit(1)
        os.write(sys.stdout.fileno(), f"{child}\n".encode())


if __name__ == "__main__":
    main()
