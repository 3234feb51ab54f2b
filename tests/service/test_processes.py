"""The service as a user runs it: processes, signals, metrics over workers, logs, what it loads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import httpx

from tests.service.serving import in_processes, until

NO_TORCH = """
import asyncio, sys
from pathlib import Path
from service.app import create_app
from service.settings import Settings

async def main(store):
    app = create_app(Settings(store=Path(store)))
    body = b'{"nodes": [1], "new_nodes": [{"id": "a", "features": [1, 2, 3, 4, 5], "neighbors": [0, 3]}]}'
    sent = []
    async def receive():
        return {"type": "http.request", "body": body}
    async def send(message):
        sent.append(message)
    await app._rollout.start()
    scope = {"type": "http", "path": "/predict", "method": "POST", "headers": []}
    await app(scope, receive, send)
    assert sent[0]["status"] == 200, sent
    await app._rollout.stop()

asyncio.run(main(sys.argv[1]))
loaded = {name.partition(".")[0] for name in sys.modules}
print(sorted(loaded & {"torch", "scipy", "sklearn", "torch_geometric", "pandas", "onnxruntime", "training"}))
"""


def test_a_worker_on_a_cpu_loads_no_torch(store: Path) -> None:
    command = [sys.executable, "-c", NO_TORCH, str(store)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_metrics_add_up_over_workers(store: Path) -> None:
    with in_processes(store, workers=2) as (client, _process, _lines):
        for _ in range(40):
            with httpx.Client(base_url=client.base_url) as fresh:  # a new connection may reach either worker
                assert fresh.post("/predict", json={"nodes": [1]}).status_code == 200
        counted = 'sgf_requests_total{code="200",route="/predict"} 40.0'
        until(lambda: counted in client.get("/metrics").text)  # each worker books when its heart beats
        for _ in range(5):
            page = client.get("/metrics").text
            assert counted in page
            assert 'sgf_request_duration_seconds_count{route="/predict"} 40.0' in page
        for name in (
            "sgf_ready 1.0",
            "sgf_graph_nodes 60.0",
            "sgf_build_info",
            "sgf_process_peak_memory_bytes",
            "sgf_model_info",
        ):
            assert name in page


def test_logs_are_json_lines_without_payloads(store: Path) -> None:
    secret = "k" * 30
    with in_processes(store, api_keys=secret) as (client, _process, lines):
        headers = {"authorization": f"Bearer {secret}", "x-request-id": "find-me"}
        client.post("/predict", json={"nodes": [17]}, headers=headers)
        client.post("/predict", json={"nodes": [17]})
        until(lambda: sum("service.access" in line for line in lines) >= 3)
        told = [json.loads(line) for line in lines]
    access = [one for one in told if one["logger"] == "service.access" and one["route"] == "/predict"]
    assert access[0]["request_id"] == "find-me"
    assert (access[0]["code"], access[1]["code"], access[1]["error"]) == (200, 401, "unauthorized")
    assert access[0]["milliseconds"] > 0
    assert secret not in "".join(lines)
    assert "nodes" not in "".join(lines)


def test_sigterm_lets_requests_finish(store: Path) -> None:
    """A load runs while the service is told to stop: what was accepted is answered, then the processes are gone."""
    with in_processes(store) as (client, process, _lines):
        answered: list[int] = []
        refused_connections: list[str] = []

        def load() -> None:
            while not refused_connections:
                try:
                    with httpx.Client(base_url=client.base_url, timeout=10) as own:
                        answered.append(own.post("/predict", json={"nodes": [1]}).status_code)
                except httpx.TransportError:  # refused, or in the backlog when the socket closed: it was never accepted
                    refused_connections.append("closed")

        caller = threading.Thread(target=load)
        caller.start()
        until(lambda: len(answered) > 20)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=15) in (0, -signal.SIGTERM)
        caller.join(timeout=15)
    assert set(answered) == {200}


def test_a_worker_that_is_killed_comes_back(store: Path) -> None:
    with in_processes(store, workers=2) as (client, process, _lines):
        until(lambda: len(alive(process.pid)) == 2)
        workers = alive(process.pid)
        os.kill(workers[0], signal.SIGKILL)

        until(lambda: len(alive(process.pid)) == 2 and workers[0] not in alive(process.pid))
        until(lambda: client.get("/health/ready").status_code == 200)
        assert client.post("/predict", json={"nodes": [1]}).status_code == 200
        until(lambda: "sgf_ready 1.0" in client.get("/metrics").text)  # the dead one does not speak for the living


def alive(parent: int) -> list[int]:
    """The workers among a process's children."""
    found = []
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        with suppress(OSError):
            if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text():
                found.append(int(child))
    return found


def test_the_example_asks_a_running_service(store: Path) -> None:
    with in_processes(store) as (client, _process, _lines):
        command = [sys.executable, str(Path(__file__).parents[2] / "examples" / "ask.py"), str(client.base_url)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    told = done.stdout.splitlines()
    assert " version 1, snapshot " in told[0]
    assert "node 'mine': " in told[3]
    assert "(exact)" in told[3]
    assert told[4] == "  embeddings of two nodes: (2, 8)"
    assert "404 unknown_node" in told[5]
    assert told[6] == "50 questions at once, answered by version 1"
