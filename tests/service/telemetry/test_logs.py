"""The log: if its reader stalls or exits, only log lines are lost."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from service.telemetry import logs
from service.telemetry.logs import LogWriter
from tests.service.http.raw import connect, read_response, request
from tests.service.serving import free_port, is_up, until


def test_lines_that_a_stalled_reader_loses_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_WAITING_BYTES", 200_000)
    reading, writing = os.pipe()
    writer = LogWriter(writing)
    line = b"x" * 999 + b"\n"
    for _ in range(1000):
        writer.put([line])
    assert 500 < writer.dropped_lines < 1000
    kept = 1000 - writer.dropped_lines
    received = b""
    while len(received) < kept * 1000:  # whole lines, and every lost line is counted
        received += os.read(reading, 65_536)
    assert received == line * kept
    writer.put([b"next line\n"])
    assert os.read(reading, 100) == b"next line\n"
    writer.close()


def test_a_closed_pipe_does_not_stop_the_writer() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    writer = LogWriter(writing)
    for _ in range(10):
        writer.put([b"line\n"])
    until(lambda: not writer._waiting_bytes)


def test_a_record_that_cannot_be_written_is_counted_and_does_not_raise() -> None:
    reading, writing = os.pipe()
    writer = LogWriter(writing)
    logger = logging.getLogger("tests.logs")
    logger.propagate = False
    logger.addHandler(writer)
    try:
        logger.error("%d", "not a number")
        logger.error("fine")
    finally:
        logger.removeHandler(writer)
    assert writer.dropped_lines == 1
    assert json.loads(os.read(reading, 65_536))["message"] == "fine"


@pytest.mark.parametrize("closed", [False, True])
def test_requests_are_answered_if_the_log_is_not_read(store: Path, closed: bool) -> None:
    """A pipe holds 64 kB: an earlier version of the service stopped after 302 requests."""
    port = free_port()
    command = [sys.executable, "-m", "service", "--store", str(store), "--port", str(port), "--body-seconds", "1"]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process, httpx.Client(base_url=url, timeout=30) as client:
        try:
            until(lambda: is_up(client))
            assert process.stderr is not None
            if closed:
                process.stderr.close()
            with connect(client) as connection:
                for _ in range(1500):
                    connection.sendall(request())
                    assert read_response(connection)[0].startswith(b"HTTP/1.1 200")
            with connect(client) as slow:
                slow.sendall(request()[:-1])
                assert read_response(slow)[0].startswith(b"HTTP/1.1 408")
            until(lambda: 'code="408",route="/predict"} 1.0' in client.get("/metrics").text)
            assert client.get("/health/live").status_code == 200
        finally:
            process.kill()
            if not closed:
                process.stderr.read()
