"""JSON lines on standard error: one per request, and one per event. No payloads, no secrets."""

from __future__ import annotations

import logging
import sys
import time
from datetime import UTC, datetime
from typing import Any

import orjson

_OURS = {"seconds", "request_id"}
"""Extras that our own log calls may carry."""


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


def set_up() -> None:
    """Once per process: everything that logs, logs as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = name != "uvicorn.access"  # we have our own line per request


class AccessLog:
    """Noted, and written straight to standard error with each heartbeat: the logging machinery, and a call of the system for
    every line, would cost as much as a known node's answer.
    """

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._noted: list[tuple[float, str, str, str, int, float, int, str | None]] = []

    def flush(self) -> None:
        if self._noted:
            noted, self._noted = self._noted, []
            sys.stderr.write(b"".join([_line(*one) for one in noted]).decode())

    def write(
        self, request_id: str, method: str, route: str, code: int, seconds: float, sent: int, error: str | None
    ) -> None:
        if self._enabled:
            self._noted.append((time.time(), request_id, method, route, code, seconds, sent, error))


def _line(
    at: float, request_id: str, method: str, route: str, code: int, seconds: float, sent: int, error: str | None
) -> bytes:
    line = {
        "time": datetime.fromtimestamp(at, UTC),
        "level": "info",
        "logger": "service.access",
        "request_id": request_id,
        "method": method,
        "route": route,
        "code": code,
        "milliseconds": round(seconds * 1000, 3),
        "bytes": sent,
    }
    if error is not None:
        line["error"] = error
    return orjson.dumps(line, option=orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE)
