"""The measured servers. Each runs in its own process; this module starts it, waits for it, and ends it with its children."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import numpy as np

from benchmarks.load import closed, request
from benchmarks.results import Loads
from benchmarks.workload import Bodies, publish

FIRST_QUESTION = b'{"nodes": [0]}'
START_SECONDS, END_SECONDS = 300.0, 15.0
CONNECTIONS, ROUNDS, SECONDS, WARMUP_SECONDS = 16, 7, 1.5, 0.5


@dataclass(frozen=True)
class Dialect:
    """The protocol of one server: its path, its form of a `/predict` body, and its form of the probabilities."""

    path: str
    body: Callable[[bytes], bytes]
    """Converts a `/predict` body to the form of the server."""
    probabilities: Callable[[bytes], np.ndarray]
    """Reads the probabilities from a response."""


def _read_probabilities(answer: bytes) -> np.ndarray:
    return np.array([node["probabilities"] for node in json.loads(answer)["predictions"]])


OURS = Dialect("/predict", lambda body: body, _read_probabilities)


@dataclass(frozen=True)
class Server:
    port: int
    pid: int
    dialect: Dialect = OURS

    def requests(self, bodies: list[bytes]) -> list[bytes]:
        """Returns the questions as the bytes of HTTP requests."""
        return [request(self.dialect.body(body), self.dialect.path, self.port) for body in bodies]

    def probabilities(self, body: bytes) -> np.ndarray:
        """Returns the probabilities of every node of one question."""
        return self.dialect.probabilities(self.ask(body))

    def cpu_seconds(self) -> float:
        """Returns the user and system time of all threads of the process so far."""
        user, system = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def ask(self, body: bytes) -> bytes:
        """Sends one question. Raises OSError or HTTPException if the status is not 200."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("POST", self.dialect.path, self.dialect.body(body), {"content-type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise HTTPException(f"{self.dialect.path} answered {response.status}: {answer[:500]!r}")
        return answer


@contextmanager
def running(
    command: list[str],
    port: int,
    environ: dict[str, str],
    dialect: Dialect = OURS,
    folder: str | None = None,
    own_session: bool = True,
    limit: Callable[[], None] | None = None,
) -> Iterator[Server]:
    """Starts a server and discards its log.

    Args:
        own_session: start the server in a new session. Linux divides the processors evenly between sessions, so the number
            of processes of a server does not change its share. False: the server is in the session of this process.
        limit: called in the new process before the program starts.
    """
    environ = environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    devnull, group = subprocess.DEVNULL, {"start_new_session": True} if own_session else {"process_group": 0}
    pipes = {"stdout": devnull, "stderr": devnull}
    with subprocess.Popen(command, env=environ, cwd=folder, preexec_fn=limit, **pipes, **group) as process:
        try:
            server = Server(port, process.pid, dialect)
            _wait_for(server, process)
            yield server
        finally:
            _end(process)


def service(
    store: str, own_session: bool = True, protocol: str = "", limit: Callable[[], None] | None = None, **settings: str
) -> AbstractContextManager[Server]:
    """`sgf-serve` with its defaults, except that the cache is off: it would answer instead of the engine.

    Args:
        protocol: MODULE:CLASS of an HTTP protocol to use in place of the service's own.
        limit: called in the new process before the program starts.
        settings: SGF_* settings, without the prefix and in lower case.
    """
    port = free_port()
    environ = os.environ | {"SGF_CACHE_BYTES": "0"} | {f"SGF_{name.upper()}": value for name, value in settings.items()}
    program = ["benchmarks.launcher", protocol] if protocol else ["service"]
    command = [sys.executable, "-m", *program, "--store", store, "--port", str(port)]
    return running(command, port, environ, own_session=own_session, limit=limit)


def floor(store: str, name: str = "floor") -> AbstractContextManager[Server]:
    """A server of `benchmarks.http_floors`: "floor" or "plain"."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.http_floors", name, str(port), store]
    return running(command, port, dict(os.environ))


Start = Callable[[str], AbstractContextManager[Server]]


@contextmanager
def serving(nodes: int, starts: Mapping[str, Start]) -> Iterator[dict[str, Server]]:
    """Publishes a model with `nodes` nodes, and starts every server with the path of its store."""
    with tempfile.TemporaryDirectory() as root, ExitStack() as stack:
        store = publish(root, nodes)
        yield {name: stack.enter_context(start(store)) for name, start in starts.items()}


def take_turns(
    contestants: Mapping[str, tuple[Server, Bodies]],
    connections: int = CONNECTIONS,
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
) -> dict[str, Loads]:
    """Loads every contestant in a closed loop once per round, after a short warm-up. All responses must be 200."""
    loads = {name: Loads() for name in contestants}
    for number in range(rounds + 1):
        for name, (server, bodies) in contestants.items():
            requests = server.requests(bodies)
            load = closed(server.port, requests, connections, seconds if number else WARMUP_SECONDS)
            if set(load.statuses) != {200}:
                raise SystemExit(f"{name} answered {load.statuses}")
            if number:
                loads[name].append(load)
    return loads


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(server: Server, process: subprocess.Popen[bytes]) -> None:
    end, problem = time.monotonic() + START_SECONDS, ""
    while time.monotonic() < end:
        if process.poll() is not None:
            raise SystemExit(f"a server ended before it answered: {process.args!r}")
        try:
            server.ask(FIRST_QUESTION)
        except (OSError, HTTPException) as error:
            problem = str(error)
            time.sleep(0.1)
        else:
            return
    raise SystemExit(f"a server did not answer within {START_SECONDS:.0f} s: {process.args!r}: {problem}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminates the server, which ends its workers, and kills the descendants that are left after that."""
    children = [os.pidfd_open(pid) for pid in descendants(process.pid)]  # not the group: BentoML's worker leaves it
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    process.kill()
    for child in children:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(child, signal.SIGKILL)
        os.close(child)


def descendants(pid: int) -> list[int]:
    lists = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    children = [int(child) for pids in lists for child in pids]
    return children + [pid for child in children for pid in descendants(child)]
