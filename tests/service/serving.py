"""Starts the service on a real port, in a thread of the test process or in separate processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import uvicorn

from service.app import create_app
from service.http.protocol import Protocol
from service.settings import Settings
from tests.model_store.samples import small_contents

CONTENTS = small_contents(config={"layers": 3, "hidden": 8, "gnn_activation": False}, classes=("x", "y", "z"))
"""The model of most tests. Without a ReLU in the GCN, every change of a neighbour changes the answer."""
PATIENT = {"poll_seconds": 0.05, "max_queue_seconds": 30.0, "deadline_seconds": 20.0, "body_seconds": 60.0}
"""Long limits, because tests share two cores with other processes."""


class Started(NamedTuple):
    process: subprocess.Popen[str]
    lines: list[str]
    """The log so far."""


class Running(NamedTuple):
    client: httpx.Client
    process: subprocess.Popen[str]
    lines: list[str]
    """The log so far."""


@contextmanager
def in_thread(store: Path, **settings: Any) -> Iterator[httpx.Client]:
    """Runs the application under uvicorn in a thread, and yields a client."""
    app = create_app(Settings(store=store, **(PATIENT | settings)))
    quiet = {"log_config": None, "access_log": False, "proxy_headers": False}
    server = uvicorn.Server(uvicorn.Config(app, port=0, http=Protocol, timeout_graceful_shutdown=3, **quiet))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        try:
            yield client
        finally:
            client.close()  # else the server waits for a last request on its connections
            server.should_exit = True
            thread.join(timeout=60)
            assert not thread.is_alive()


@contextmanager
def in_processes(store: Path, workers: int = 1, **settings: str) -> Iterator[Running]:
    """Runs `sgf-serve` as a user does."""
    port = free_port()
    flags = ("--store", str(store), "--port", str(port), "--workers", str(workers))
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
    with start_module("service", *flags, **(PATIENT | settings)) as (process, lines), client:
        try:
            until(lambda: process.poll() is not None or is_up(client))
            assert process.poll() is None, "".join(lines)
            yield Running(client, process, lines)
        finally:
            client.close()
            process.terminate()
            process.wait(timeout=60)


def worker(folder: Path, url: str, **settings: str) -> AbstractContextManager[Started]:
    """Runs `sgf-worker`, as on another machine that shares the store. The store is `models` in the folder."""
    folders = {"store": folder / "models", "data_root": folder / "data"}
    return start_module("service.jobs.worker", redis_url=url, **(folders | settings))


@contextmanager
def start_module(module: str, *flags: str, **settings: Any) -> Iterator[Started]:
    """Runs `python -m module` in a separate process."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SGF_", "OMP_NUM_THREADS"))}
    environ |= {f"SGF_{name.upper()}": str(value) for name, value in settings.items()}
    command = [sys.executable, "-m", module, *flags]
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process:
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.extend(process.stderr or ()), daemon=True)
        reader.start()
        try:
            yield Started(process, lines)
        finally:
            process.kill()
            reader.join(timeout=60)


def worker_pids(server: int) -> list[int]:
    """The workers: those children of the server that serve, not their compute processes."""
    workers = []
    for child in Path(f"/proc/{server}/task/{server}/children").read_text().split():
        with suppress(OSError):  # it has ended since
            if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text():
                workers.append(int(child))
    return workers


def is_up(client: httpx.Client) -> bool:
    try:
        return client.get("/health/live").status_code == 200
    except httpx.TransportError:
        return False


_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_ports = count(10_000 + 2_000 * (_worker % 10) + os.getpid() % 1_000)


def free_port() -> int:
    """A port that neither the kernel (whose range begins at 32,768) nor another test worker assigns meanwhile."""
    for port in _ports:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def until(condition: Any, seconds: float = 60) -> None:
    """Waits for a condition; the limit is long because the machine may be busy."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition was not met in time"
        time.sleep(0.01)


def refused(response: httpx.Response, status: int, code: str) -> str:
    """Asserts the shape of an error response, and returns its message."""
    body = response.json()
    assert (response.status_code, body["code"]) == (status, code), response.text
    assert set(body) == {"error", "code", "details"}
    assert response.headers["x-request-id"]
    assert "Traceback" not in response.text
    message: str = body["error"]
    assert message
    return message


def version_of(client: httpx.Client) -> int:
    """The version that the service serves."""
    version: int = client.get("/health/ready").json()["version"]
    return version
