"""The log: a reader that stalls or leaves costs log lines, and nothing else."""

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


def test_a_reader_that_stalls_loses_lines_which_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_WAITING_BYTES", 200_000)
    reading, writing = os.pipe()
    writer = LogWriter(writing)
    line = b"x" * 999 + b"\n"
    for _ in range(1000):
        writer.put([line])
    assert 500 < writer.dropped_lines < 1000
    kept = 1000 - writer.dropped_lines
    received = b""
    while len(received) < kept * 1000:  # whole lines, and none is lost that was not counted
        received += os.read(reading, 65_536)
    assert received == line * kept
    writer.put([b"and it goes on\n"])
    assert os.read(reading, 100) == b"and it goes on\n"
    writer.close()


def test_a_reader_that_has_gone_stops_nothing() -> None:
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


@pytest.mark.parametrize("leaves", [False, True])
def test_a_log_that_is_not_read_costs_no_request(store: Path, leaves: bool) -> None:
    """A pipe holds 64 kB: an earlier version of the service stopped after 302 requests."""
    port = free_port()
    command = [sys.executable, "-m", "service", "--store", str(store), "--port", str(port), "--body-seconds", "1"]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process, httpx.Client(base_url=url, timeout=30) as client:
        try:
            until(lambda: is_up(client))
            assert process.stderr is not None
            if leaves:
                process.stderr.close()
            with connect(client) as caller:
                for _ in range(1500):
                    caller.sendall(request())
                    assert read_response(caller)[0].startswith(b"HTTP/1.1 200")
            with connect(client) as slow:
                slow.sendall(request()[:-1])
                assert read_response(slow)[0].startswith(b"HTTP/1.1 408")
            until(lambda: 'code="408",route="/predict"} 1.0' in client.get("/metrics").text)
            assert client.get("/health/live").status_code == 200
        finally:
            process.kill()
            if not leaves:
                process.stderr.read()
