"""What each part of service/http/protocol.py contributes: all parts, all but one, and uvicorn's own protocol, in turns.

part            what it does                                          what is measured without it
queue           holds or refuses requests before they become tasks    useful answers at twice the capacity
one packet      sends head and body of a response in one packet       answers per second in a closed loop
timers          limits the time for heads and bodies                  connections that silent clients hold after the limit
last request    after SIGTERM, answers one more request of a kept     requests without an answer over restarts
                connection
"""

from __future__ import annotations

import select
import socket
import tempfile
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial

import numpy as np

from benchmarks.load import Stream, closed, open_loop
from benchmarks.restarts import lost_requests
from benchmarks.results import Result
from benchmarks.servers import Server, service, serving, take_turns
from benchmarks.workload import SMALL, known_nodes, publish

ALL, PLAIN = "service.http.protocol:Protocol", "benchmarks.protocols:Plain"
QUEUE, ONE_PACKET, TIMERS, LAST_REQUEST = (
    f"benchmarks.protocols:Without{part}" for part in ("Queue", "OnePacket", "Timers", "LastRequest")
)
PARTS = {QUEUE: "the queue", ONE_PACKET: "one packet", TIMERS: "the timers", LAST_REQUEST: "the last request"}
ROUNDS, SECONDS = 5, 2.0
OVERLOAD_ROUNDS, OVERLOAD_SECONDS, USEFUL_SECONDS = 3, 10.0, 0.5
"""An answer later than USEFUL_SECONDS after the intended time of its request is useless: the client has given up."""
SETTLE_SECONDS = 60.0
SILENT_CLIENTS, SILENCE_SECONDS = 200, 13.0
"""The time limit of the service is 10 s for a head (HEAD_SECONDS) and for a body (SGF_BODY_SECONDS)."""
HEAD = b"POST /predict HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 14\r\n\r\n"
SENT_BY_SILENT_CLIENTS = (b"", HEAD[:40], HEAD, HEAD + b'{"nod')
"""A quarter of the clients sends each of these."""
RESTARTS = 10


def one_packet() -> list[Result]:
    results = []
    with _servers(ONE_PACKET) as servers:
        for count in (16, 64):
            contestants = {name: (server, known_nodes(1)) for name, server in servers.items()}
            loads = take_turns(contestants, count, ROUNDS, SECONDS)
            rates = {name: runs.rate for name, runs in loads.items()}
            results += _rows(f"known node, {count} connections: answers per second", ONE_PACKET, rates, loads)
    return results


def queue() -> list[Result]:
    with _servers(QUEUE) as servers:
        capacity = closed(servers[ALL].port, servers[ALL].requests(known_nodes(100)), 16, 3.0).rate
        useful: dict[str, list[float]] = {name: [] for name in servers}
        for number in range(OVERLOAD_ROUNDS):
            for name, server in servers.items():
                stream = Stream(server.requests(known_nodes(100)), 2 * capacity, seed=number)
                load = open_loop(server.port, stream, OVERLOAD_SECONDS)
                useful[name].append(float((load.latencies <= USEFUL_SECONDS).sum() / OVERLOAD_SECONDS))
                _wait_for_backlog(server)
    rates = {name: float(np.median(values)) for name, values in useful.items()}
    claim = f"100 known nodes, 2x the capacity offered: answers per second that take at most {USEFUL_SECONDS:g} s"
    return _rows(claim, QUEUE, rates, {name: f"{rate:,.0f}/s" for name, rate in rates.items()})


def timers() -> list[Result]:
    with _servers(TIMERS) as servers, ExitStack() as stack:
        clients = {
            name: [stack.enter_context(_connect_silent_client(server, n)) for n in range(SILENT_CLIENTS)]
            for name, server in servers.items()
        }
        time.sleep(SILENCE_SECONDS)
        held = {name: float(sum(map(_is_open, sockets))) for name, sockets in clients.items()}
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
    return _rows(claim, LAST_REQUEST, lost, {name: f"{lost[name]:,} of {sent[name]:,}" for name in names})


def _rows(claim: str, without: str, values: Mapping[str, float], shown: Mapping[str, object]) -> list[Result]:
    """These rows have no bars: they show which parts are worth their code."""
    rows = []
    for name, parts in {ALL: "all parts", without: f"all but {PARTS[without]}"}.items():
        ratio = values[name] / values[PLAIN] if values[PLAIN] else float(values[name] > 0)
        rows.append(Result(f"{claim}: {parts}, against plain uvicorn", str(shown[name]), str(shown[PLAIN]), ratio))
    return rows


def _servers(without: str) -> AbstractContextManager[dict[str, Server]]:
    body_seconds = {TIMERS: "100000"}  # the time limit of a body is a setting
    starts = {
        name: partial(service, protocol=name, body_seconds=body_seconds.get(name, "10")) for name in (ALL, without, PLAIN)
    }
    return serving(SMALL, starts)


def _wait_for_backlog(server: Server) -> None:
    """Waits until a server without a queue has answered the requests that a run has left in it."""
    end, latency = time.monotonic() + SETTLE_SECONDS, 1.0
    while latency > 0.05:
        if time.monotonic() > end:
            raise SystemExit(f"a server has not answered its backlog within {SETTLE_SECONDS:.0f} s")
        start = time.monotonic()
        closed(server.port, server.requests(known_nodes(1)), 1, 0.1)
        latency = time.monotonic() - start - 0.1


def _connect_silent_client(server: Server, number: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port))
    client.sendall(SENT_BY_SILENT_CLIENTS[number % len(SENT_BY_SILENT_CLIENTS)])
    return client


def _is_open(client: socket.socket) -> bool:
    """True if the server has neither answered nor closed the connection."""
    poll = select.poll()
    poll.register(client, select.POLLIN)
    return not poll.poll(0)
