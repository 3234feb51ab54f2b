"""The servers that are measured: each in processes of its own, up once it answers, ended with all its children."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import numpy as np

from benchmarks.load import request

FIRST_QUESTION = b'{"nodes": [0]}'
START_SECONDS, END_SECONDS = 120.0, 15.0


@dataclass(frozen=True)
class Dialect:
    """How a server is asked what `/predict` is asked, and where in its answer the probabilities stand."""

    path: str
    body: Callable[[bytes], bytes]
    probabilities: Callable[[bytes], np.ndarray]


def _listed(answer: bytes) -> np.ndarray:
    return np.array([node["probabilities"] for node in json.loads(answer)["predictions"]])


OURS = Dialect("/predict", lambda body: body, _listed)


@dataclass(frozen=True)
class Server:
    port: int
    pid: int
    dialect: Dialect = OURS

    def requests(self, bodies: list[bytes]) -> list[bytes]:
        """The same questions as bytes to send."""
        return [request(self.dialect.body(body), self.dialect.path, self.port) for body in bodies]

    def probabilities(self, body: bytes) -> np.ndarray:
        """Of every node that one question asks about."""
        return self.dialect.probabilities(self.ask(body))

    def cpu_seconds(self) -> float:
        """User and system time of all threads of the process so far."""
        user, system = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def ask(self, body: bytes) -> bytes:
        """The answer to one question. Raises OSError or HTTPException if it is not 200."""
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
) -> Iterator[Server]:
    """Its log goes nowhere. Linux gives every session the same share of the processors, whatever runs in it."""
    environ = environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    quiet = subprocess.DEVNULL
    alone = {"start_new_session": True} if own_session else {"process_group": 0}
    with subprocess.Popen(command, env=environ, cwd=folder, stdout=quiet, stderr=quiet, **alone) as process:
        try:
            server = Server(port, process.pid, dialect)
            _wait_for(server, process)
            yield server
        finally:
            _end(process)


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
    raise SystemExit(f"a server did not come up: {process.args!r}: {problem}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Asks the server to end, which ends its workers; whatever of its family is left after that is killed."""
    family = [os.pidfd_open(pid) for pid in descendants(process.pid)]  # not its group: BentoML's worker leaves that
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    process.kill()
    for member in family:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(member, signal.SIGKILL)
        os.close(member)


def descendants(pid: int) -> list[int]:
    lists = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    children = [int(child) for one in lists for child in one]
    return children + [below for child in children for below in descendants(child)]
