"""The heart of a worker beats, whatever becomes of those who listen."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from service.heartbeat import Heartbeat
from tests.service.serving import free_port, is_up, until


def test_the_heart_beats_while_the_event_loop_comes_round_and_stops_when_told() -> None:
    beats: list[int] = []

    async def main() -> None:
        heartbeat = Heartbeat(lambda: beats.append(1))
        heartbeat.start()
        while len(beats) < 3:
            await asyncio.sleep(0.001)
        heartbeat.stop()
        told = len(beats)
        await asyncio.sleep(0.05)
        assert len(beats) == told

    asyncio.run(main())


def test_a_listener_that_fails_is_called_again_and_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    called = {"bad": 0, "good": 0}

    def bad() -> None:
        called["bad"] += 1
        if called["bad"] not in (3, 4):
            raise OSError("nobody reads the log")

    def good() -> None:
        called["good"] += 1

    async def main() -> None:
        heartbeat = Heartbeat(bad, good)
        heartbeat.start()
        while called["good"] < 8:
            await asyncio.sleep(0.001)
        heartbeat.stop()

    asyncio.run(main())
    assert called["bad"] == called["good"]
    assert len(caplog.records) == 2, "once for each time that it began to fail"


def test_a_log_that_nobody_reads_any_more_costs_nothing_but_the_log(store: Path) -> None:
    """As with `sgf-serve 2>&1 | head`: bodies are still given up on, metrics still booked."""
    port = free_port()
    command = [sys.executable, "-m", "service", "--store", str(store), "--port", str(port), "--body-seconds", "1"]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process, httpx.Client(base_url=url, timeout=30) as client:
        try:
            until(lambda: is_up(client))
            assert process.stderr is not None
            process.stderr.close()
            for _ in range(3):
                assert client.post("/predict", json={"nodes": [1]}).status_code == 200
            with socket.create_connection(("127.0.0.1", port)) as slow:
                slow.sendall(b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
                slow.settimeout(60)
                assert slow.recv(100).startswith(b"HTTP/1.1 408")
            until(lambda: 'code="408",route="/predict"} 1.0' in client.get("/metrics").text)
        finally:
            process.kill()
