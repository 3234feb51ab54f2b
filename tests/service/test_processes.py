"""The service as a user runs it: processes, signals, metrics of all workers, logs, and the modules that it loads."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from service.__main__ import SILENCE_SECONDS
from service.settings import THREAD_LIMITS
from service.telemetry.process_info import identity, remove_leftovers
from tests.service.http.raw import connect, request
from tests.service.serving import in_processes, is_up, until, worker_pids

QUESTION = request()
NO_TORCH = """
import asyncio, sys
from pathlib import Path
from service.app import create_app
from service.http.request import Request
from service.settings import Settings

async def main(store):
    app = create_app(Settings(store=Path(store)))
    class Connection:
        client, replies = None, []
        def reply(self, request, reply):
            self.replies.append(reply)
    await app._rollout.start()
    Connection.loop = asyncio.get_running_loop()
    request = Request(Connection(), "POST", b"/predict", "1.1", [(b"host", b"x")])
    request.body += b'{"nodes": [1], "new_nodes": [{"id": "a", "features": [1, 2, 3, 4, 5], "neighbors": [0, 3]}]}'
    app.screen(request)
    await app.answer(request)
    assert Connection.replies[0].status == 200, Connection.replies
    await app._rollout.stop()

asyncio.run(main(sys.argv[1]))
model = {name.partition(".")[0] for name in sys.modules}
print(sorted(model & {"torch", "scipy", "sklearn", "torch_geometric", "pandas", "onnxruntime", "training"}))
"""


def test_a_worker_on_a_cpu_loads_no_torch(store: Path) -> None:
    command = [sys.executable, "-c", NO_TORCH, str(store)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_metrics_add_up_over_workers(store: Path) -> None:
    with in_processes(store, workers=2) as (client, _process, _lines):
        # Wait until both workers have loaded the model.
        until(lambda: 'sgf_model_swaps_total{result="taken"} 2.0' in client.get("/metrics").text)
        for _ in range(40):
            with httpx.Client(base_url=client.base_url, timeout=30) as fresh:  # a new connection may reach either worker
                assert fresh.post("/predict", json={"nodes": [1]}).status_code == 200
        counted = 'sgf_requests_total{code="200",route="/predict"} 40.0'
        until(lambda: counted in client.get("/metrics").text)  # each worker writes its metrics at an interval
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


@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_removes_its_metrics_folder_and_those_of_killed_servers(
    store: Path, tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with in_processes(store) as killed:
        (left,) = tmp_path.glob("sgf-metrics-*")
        killed.process.kill()
        killed.process.wait(timeout=60)
        assert left.exists()
    with in_processes(store, workers) as living:
        assert not left.exists()
        (kept,) = tmp_path.glob("sgf-metrics-*")
        remove_leftovers(tmp_path)
        assert kept.exists()
        until(lambda: "sgf_ready 1.0" in living.client.get("/metrics").text)  # the other worker may still be starting
    assert living.process.returncode == 0
    assert "Traceback" not in "".join(living.lines)
    assert list(tmp_path.glob("sgf-metrics-*")) == []


def test_a_folder_is_removed_if_no_process_that_wrote_into_it_runs(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    dead, living = identity(ended.pid), identity(os.getpid())
    ended.communicate()
    reused = f"{os.getpid()}-1"  # in a container: an earlier process 1
    folders = {
        f"sgf-metrics-{dead}-a": dead,
        f"sgf-metrics-{dead}-b": living,  # a worker that has outlived its server
        f"sgf-metrics-{living}-c": dead,  # a worker that was restarted
        f"sgf-metrics-{reused}-d": reused,
        "sgf-metrics-e": dead,
        "another-program": dead,
    }
    for name, worker in folders.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / f"gauge_liveall_{worker}.db").touch()
    (tmp_path / "sgf-metrics-link").symlink_to(tmp_path / "another-program")
    remove_leftovers(tmp_path)
    kept = {f"sgf-metrics-{dead}-b", f"sgf-metrics-{living}-c", "another-program", "sgf-metrics-link"}
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_a_restarted_container_has_one_folder_though_its_server_is_always_process_1(store: Path, tmp_path: Path) -> None:
    """Each start has a new process namespace and ends by SIGKILL; the folder for temporary files stays."""
    namespace = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*namespace, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("NOT RUN: this machine allows no user and process namespaces (unshare)")
    environ = os.environ | {"TMPDIR": str(tmp_path), "SGF_PORT": "0", "SGF_STORE": str(store)}
    for _ in range(3):
        before = folders(tmp_path)
        command = [*namespace, sys.executable, "-m", "service"]
        with subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL) as server:
            try:
                until(lambda: server.poll() is not None or folders(tmp_path) - before)  # noqa: B023  # called at once
                assert server.poll() is None
                assert len(folders(tmp_path)) == 1
            finally:
                server.kill()


def folders(parent: Path) -> set[str]:
    """Metrics folders that a server with process number 1 has written into."""
    return {path.parent.name for path in parent.glob("sgf-metrics-1-*/*.db")}


THREADS = """
import uvicorn
from service.__main__ import main
def run(*_, **__):
    import numpy, threadpoolctl
    print({pool["num_threads"] for pool in threadpoolctl.threadpool_info()})
uvicorn.run = run
main(["--wait-for-model"])
"""


@pytest.mark.parametrize(("value", "threads"), [("", "{1}"), ("2", "{2}")])
def test_linear_algebra_has_one_thread_by_default(value: str, threads: str) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    environ |= dict.fromkeys(THREAD_LIMITS, value)
    done = subprocess.run([sys.executable, "-c", THREADS], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == f"{threads}\n"


def test_logs_are_json_lines_without_payloads(store: Path) -> None:
    secret, start = "k" * 30, datetime.now(UTC)
    with in_processes(store, api_keys=secret) as (client, _process, lines):
        headers = {"authorization": f"Bearer {secret}", "x-request-id": "find-me"}
        client.post("/predict", json={"nodes": [17]}, headers=headers)
        client.post("/predict", json={"nodes": [17]})
        client.get("/models")
        until(lambda: sum("service.access" in line for line in lines) >= 4)
        records = [json.loads(line) for line in lines]
    access = [record for record in records if record["logger"] == "service.access" and record["route"] == "/predict"]
    assert access[0]["request_id"] == "find-me"
    assert (access[0]["code"], access[1]["code"], access[1]["error"]) == (200, 401, "unauthorized")
    assert access[0]["milliseconds"] > 0
    assert (
        start <= datetime.fromisoformat(access[0]["time"]) <= datetime.fromisoformat(access[1]["time"]) <= datetime.now(UTC)
    )
    assert secret not in "".join(lines)
    refused = next(record for record in records if record.get("route") == "/models")
    assert (refused["code"], refused["error"], refused["bytes"] > 50) == (401, "unauthorized", True)
    assert "nodes" not in "".join(lines)


@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_lets_requests_finish(store: Path, workers: int) -> None:
    """A request of which half has arrived and a request on a kept connection get their answers; then the processes end."""
    with in_processes(store, workers=workers) as (client, process, _lines), connect(client) as kept, connect(client) as half:
        assert send(kept, QUESTION).startswith(b"HTTP/1.1 200")
        half.sendall(QUESTION[:-5])
        until(lambda: "sgf_requests_total" in client.get("/metrics").text)
        process.send_signal(signal.SIGTERM)
        while b"connection: close" not in (answer := send(kept, QUESTION)):  # the header of the last answer
            assert answer.startswith(b"HTTP/1.1 200")
        assert answer.startswith(b"HTTP/1.1 200")
        assert send(half, QUESTION[-5:]).startswith(b"HTTP/1.1 200")
        assert process.wait(timeout=60) == 0


def test_a_request_that_is_cut_off_by_the_shutdown_gets_an_answer_too(store: Path) -> None:
    with in_processes(store, deadline_seconds="1", body_seconds="60") as (client, process, _lines), connect(client) as half:
        half.sendall(QUESTION[:-5])
        until(lambda: "sgf_requests_total" in client.get("/metrics").text)
        process.send_signal(signal.SIGTERM)
        head, _, body = send(half, b"").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503")
    assert json.loads(body) == {"error": "the service is shutting down", "code": "not_ready", "details": {}}


def send(connection: socket.socket, content: bytes) -> bytes:
    connection.sendall(content)
    return connection.recv(65_536)  # an answer comes in one piece


def test_a_worker_that_is_killed_comes_back(store: Path) -> None:
    with in_processes(store, workers=2) as (client, process, _lines):
        until(lambda: len(worker_pids(process.pid)) == 2)
        workers = worker_pids(process.pid)
        os.kill(workers[0], signal.SIGKILL)

        until(lambda: len(worker_pids(process.pid)) == 2 and workers[0] not in worker_pids(process.pid))
        with httpx.Client(base_url=client.base_url, timeout=30) as fresh:  # `client` may be connected to the killed one
            until(lambda: fresh.get("/health/ready").status_code == 200)
            assert fresh.post("/predict", json={"nodes": [1]}).status_code == 200
            until(lambda: "sgf_ready 1.0" in fresh.get("/metrics").text)  # the metrics of the killed worker are not included


def test_workers_that_are_killed_while_they_start_come_back(store: Path) -> None:
    with in_processes(store, workers=2) as (client, process, _lines):
        until(lambda: len(worker_pids(process.pid)) == 2)
        first, second = worker_pids(process.pid)
        os.kill(first, signal.SIGKILL)
        until(lambda: set(worker_pids(process.pid)) - {first, second})
        (starting,) = set(worker_pids(process.pid)) - {first, second}
        os.kill(starting, signal.SIGSTOP)
        time.sleep(2)  # the supervisor waits for its health check
        for worker in (starting, second):
            os.kill(worker, signal.SIGKILL)
        until(lambda: len(worker_pids(process.pid)) == 2, SILENCE_SECONDS - 5)  # uvicorn's supervisor would wait longer
        with httpx.Client(base_url=client.base_url, timeout=30) as fresh:
            until(lambda: is_up(fresh))


def test_the_example_asks_a_running_service(store: Path) -> None:
    with in_processes(store) as (client, _process, _lines):
        command = [sys.executable, str(Path(__file__).parents[2] / "examples" / "ask.py"), str(client.base_url)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert " version 1, snapshot " in lines[0]
    assert "node 'mine': " in lines[3]
    assert "(exact)" in lines[3]
    assert lines[4] == "  shape of the embeddings of two nodes: (2, 8)"
    assert "404 unknown_node" in lines[5]
    assert lines[6] == "50 concurrent requests, answered by version 1"
