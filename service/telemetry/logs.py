"""JSON lines on standard error: one per request, and one per event. No payloads, no secrets.

A thread writes them. A reader of the log that stalls therefore stalls nothing else: up to MAX_WAITING_BYTES wait for it,
further lines are dropped and counted (`sgf_log_lines_dropped_total`).
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import orjson

from service.http.request import Request

_OURS = {"seconds", "request_id"}
"""Extras that our own log calls may carry."""
MAX_WAITING_BYTES = 4 * 2**20
CLOSE_SECONDS = 1.0


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in _OURS if hasattr(record, name)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str, option=orjson.OPT_UTC_Z).decode()


class LogWriter(logging.Handler):
    """Writes to a file descriptor from a thread of its own. `put` and `emit` never block."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.dropped_lines = 0
        self._descriptor = descriptor
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        threading.Thread(target=self._write_all, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.put([self.format(record).encode() + b"\n"])
        except Exception:  # the caller of a log function must not fail for it
            self.dropped_lines += 1

    def put(self, lines: list[bytes]) -> None:
        with self._changed:
            if self._waiting_bytes > MAX_WAITING_BYTES:
                self.dropped_lines += len(lines)
                return
            data = b"".join(lines)
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            self._changed.notify_all()

    def close(self) -> None:
        """Waits until everything is written, for CLOSE_SECONDS at most."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting_bytes, CLOSE_SECONDS)
        super().close()

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                data = self._waiting.popleft()
            with suppress(OSError):  # the reader is gone: there is no better place to say so
                _write(self._descriptor, data)
            with self._changed:
                self._waiting_bytes -= len(data)
                self._changed.notify_all()


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def set_up() -> LogWriter:
    """Once per process: everything that logs, logs as JSON lines from now on."""
    root = logging.getLogger()
    for handler in root.handlers:
        if isinstance(handler, LogWriter):
            return handler
    writer = LogWriter(sys.stderr.fileno())
    root.handlers[:] = [writer]
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = name != "uvicorn.access"  # we have our own line per request
    return writer


class AccessLog:
    """Collects a line per request; `flush` hands them to the writer, many at once."""

    def __init__(self, writer: LogWriter | None) -> None:
        """Without a writer nothing is logged."""
        self._writer = writer
        self._lines: list[bytes] = []

    @property
    def dropped_lines(self) -> int:
        return 0 if self._writer is None else self._writer.dropped_lines

    def flush(self) -> None:
        if self._writer is not None and self._lines:
            lines, self._lines = self._lines, []
            self._writer.put(lines)

    def write(self, request: Request, route: str, code: int, seconds: float, sent: int, error: str | None) -> None:
        if self._writer is None:
            return
        client = request.connection.client
        line = {
            "time": datetime.now(UTC),
            "level": "info",
            "logger": "service.access",
            "request_id": request.id,
            "client": client and client[0],
            "key": request.key,
            "method": request.method,
            "route": route,
            "code": code,
            "milliseconds": round(seconds * 1000, 3),
            "bytes": sent,
            "error": error,
        }
        self._lines.append(orjson.dumps(line, option=orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE))
