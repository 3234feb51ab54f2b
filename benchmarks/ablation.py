"""What each part of service/http/protocol.py brings: all parts, all but one, and uvicorn's own protocol, in turns.

queue           requests wait or are refused before they become tasks: useful answers at twice the capacity
one packet      head and body of an answer in one packet: answers per second in a closed loop
timers          for heads and bodies that do not arrive: connections that silent clients still hold after the time-out
last request    on SIGTERM a kept connection may send one more request: requests without an answer over restarts
"""

from __future__ import annotations

import select
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

from benchmarks.http import SMALL, Measured, known, publish, service
from benchmarks.load import Stream, closed, open_loop
from benchmarks.restarts import lost_requests
from benchmarks.result import Result
from benchmarks.servers import Server

ALL, PLAIN = "service.http.protocol:Protocol", "benchmarks.protocols:Plain"
QUEUE, ONE_PACKET, TIMERS, LAST_REQUEST = (
    f"benchmarks.protocols:Without{part}" for part in ("Queue", "OnePacket", "Timers", "LastRequest")
)
PARTS = {QUEUE: "the queue", ONE_PACKET: "one packet", TIMERS: "the timers", LAST_REQUEST: "the last request"}
ROUNDS, SECONDS = 5, 2.0
OVERLOAD_ROUNDS, OVERLOAD_SECONDS, USEFUL_SECONDS = 3, 10.0, 0.5
"""An answer that comes later than that after its intended time is useless: its client has given up."""
SETTLE_SECONDS = 60.0
SILENT_CLIENTS, SILENCE_SECONDS = 200, 13.0
"""The service gives up after 10 s on a head (HEAD_SECONDS) and on a body (SGF_BODY_SECONDS)."""
HEAD = b"POST /predict HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 14\r\n\r\n"
SENT_BY_SILENT_CLIENTS = (b"", HEAD[:40], HEAD, HEAD + b'{"nod')
"""A quarter of them each."""
RESTARTS = 10


def one_packet() -> list[Result]:
    results = []
    with _servers(ONE_PACKET) as servers:
        for count in (16, 64):
            measured = {name: Measured([]) for name in servers}
            for number in range(ROUNDS + 1):
                for name, server in servers.items():
                    load = closed(server.port, server.requests(known(1)), count, SECONDS if number else 0.5)
                    if number:
                        measured[name].loads.append(load)
            rates = {name: turns.rate for name, turns in measured.items()}
            shown = {name: str(turns) for name, turns in measured.items()}
            results += _rows(f"known node, {count} connections: answers per second", ONE_PACKET, rates, shown)
    return results


def queue() -> list[Result]:
    with _servers(QUEUE) as servers:
        capacity = closed(servers[ALL].port, servers[ALL].requests(known(100)), 16, 3.0).rate
        useful: dict[str, list[float]] = {name: [] for name in servers}
        for number in range(OVERLOAD_ROUNDS):
            for name, server in servers.items():
                stream = Stream(server.requests(known(100)), 2 * capacity, seed=number)
                load = open_loop(server.port, stream, OVERLOAD_SECONDS)
                useful[name].append(float((load.latencies <= USEFUL_SECONDS).sum() / OVERLOAD_SECONDS))
                _settle(server)
    rates = {name: float(np.median(values)) for name, values in useful.items()}
    claim = f"100 known nodes, 2x the capacity offered: answers per second that take at most {USEFUL_SECONDS:g} s"
    return _rows(claim, QUEUE, rates, {name: f"{rate:,.0f}/s" for name, rate in rates.items()})


def timers() -> list[Result]:
    with _servers(TIMERS) as servers, ExitStack() as stack:
        clients = {
            name: [stack.enter_context(_silent(server, n)) for n in range(SILENT_CLIENTS)]
            for name, server in servers.items()
        }
        time.sleep(SILENCE_SECONDS)
        held = {name: float(sum(_is_open(client) for client in some)) for name, some in clients.items()}
    claim = f"connections that {SILENT_CLIENTS} silent clients hold after {SILENCE_SECONDS:.0f} s"
    return _rows(claim, TIMERS, held, {name: f"{count:.0f}" for name, count in held.items()})


def last_request() -> list[Result]:
    names = (ALL, LAST_REQUEST, PLAIN)
    lost, sent = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    with tempfile.TemporaryDirectory() as root:
        store = publish(root, SMALL)
        for _ in range(RESTARTS):
            for name in names:
                with ExitStack() as stack:
                    server = stack.enter_context(service(store, protocol=name))
                    counts = lost_requests(server.port, stack.close)
                lost[name], sent[name] = lost[name] + counts[0], sent[name] + counts[1]
    claim = f"requests of keep-alive clients without an answer over {RESTARTS} restarts"
    shown = {name: f"{lost[name]:,} of {sent[name]:,}" for name in names}
    return _rows(claim, LAST_REQUEST, {name: float(count) for name, count in lost.items()}, shown)


CONTESTS: tuple[Callable[[], list[Result]], ...] = (one_packet, queue, timers, last_request)


def _rows(claim: str, without: str, values: dict[str, float], shown: dict[str, str]) -> list[Result]:
    """No bars: the rows tell which parts are worth their lines."""
    described = {ALL: "all parts", without: f"all but {PARTS[without]}"}
    return [
        Result(
            f"{claim}: {what}, against plain uvicorn",
            shown[name],
            shown[PLAIN],
            _ratio(values[name], values[PLAIN]),
            "",
            True,
        )
        for name, what in described.items()
    ]


def _ratio(ours: float, theirs: float) -> float:
    """0x if both are 0."""
    return ours / theirs if theirs else float(ours > 0)


@contextmanager
def _servers(without: str) -> Iterator[dict[str, Server]]:
    with tempfile.TemporaryDirectory() as root, ExitStack() as stack:
        store = publish(root, SMALL)
        body_seconds = {TIMERS: "100000"}  # the time limit of a body is a setting
        yield {
            name: stack.enter_context(service(store, protocol=name, body_seconds=body_seconds.get(name, "10")))
            for name in (ALL, without, PLAIN)
        }


def _settle(server: Server) -> None:
    """Waits until what a run has left in a server without a queue is answered."""
    end, took = time.monotonic() + SETTLE_SECONDS, 1.0
    while took > 0.05:
        if time.monotonic() > end:
            raise SystemExit(f"a server has not answered its backlog within {SETTLE_SECONDS:.0f} s")
        start = time.monotonic()
        closed(server.port, server.requests(known(1)), 1, 0.1)
        took = time.monotonic() - start - 0.1


def _silent(server: Server, number: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port))
    client.sendall(SENT_BY_SILENT_CLIENTS[number % len(SENT_BY_SILENT_CLIENTS)])
    return client


def _is_open(client: socket.socket) -> bool:
    """The server has neither answered nor closed the connection."""
    return not select.select([client], [], [], 0)[0]
