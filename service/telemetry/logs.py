"""The log on standard error: one line per request or event, without request bodies and secrets, as JSON or as text for a
person at a terminal (`text_lines`).

A thread writes the lines, so that a stalled reader of the log delays no request. At most MAX_WAITING_BYTES wait to be
written; further lines are dropped and counted (`sgf_log_lines_dropped_total`).
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

from service.telemetry.text_lines import TextLines

EXTRA_FIELDS = ("seconds", "request_id")
"""Keys of `extra` in log calls whose values become fields of the line."""
MAX_WAITING_BYTES = 4 * 2**20
CLOSE_SECONDS = 1.0


class LogWriter(logging.Handler):
    """Writes to a file descriptor from a thread of its own. `put` and `emit` never block."""

    def __init__(self, descriptor: int, text: TextLines | None = None) -> None:
        """Without `text`, lines are JSON."""
        super().__init__()
        self.dropped_lines, self.text = 0, text
        self._descriptor = descriptor
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        threading.Thread(target=self._write_all, name="log", daemon=True).start()

    def format(self, record: logging.LogRecord) -> str:
        extra = {name: getattr(record, name) for name in EXTRA_FIELDS if hasattr(record, name)}
        trace = logging.Formatter().formatException(record.exc_info) if record.exc_info else None
        if self.text is not None:
            return self.text.format_record(record, extra) + (f"\n{trace}" if trace else "")
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= extra | ({"exception": trace} if trace else {})
        return orjson.dumps(line, default=str, option=orjson.OPT_UTC_Z).decode()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.put([self.format(record).encode() + b"\n"])
        except Exception:  # a log call must not fail its caller
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
        """Waits until all lines are written, for at most CLOSE_SECONDS."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting_bytes, CLOSE_SECONDS)
        super().close()

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                data = unwritten = self._waiting.popleft()
            with suppress(OSError):  # the reader has closed the pipe, and there is no other place to report that
                while unwritten:
                    unwritten = unwritten[os.write(self._descriptor, unwritten) :]
            with self._changed:
                self._waiting_bytes -= len(data)
                self._changed.notify_all()


def set_up(log_format: str = "auto") -> LogWriter:
    """Makes all loggers of this process write to standard error in this format. A second call has no effect."""
    root = logging.getLogger()
    for handler in root.handlers:
        if isinstance(handler, LogWriter):
            return handler
    descriptor = sys.stderr.fileno()
    is_text = log_format == "text" or (log_format == "auto" and os.isatty(descriptor))
    writer = LogWriter(descriptor, TextLines(descriptor) if is_text else None)
    root.handlers[:] = [writer]
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = name != "uvicorn.access"  # AccessLog takes its place
        logger.setLevel(logging.WARNING if is_text else logging.INFO)  # the banner has what uvicorn would log
    return writer


class AccessLog:
    """Collects one line per request; `flush` passes the lines to the writer, many at once."""

    def __init__(self, writer: LogWriter | None) -> None:
        """Without a writer nothing is logged."""
        self._writer = writer
        self._lines: list[bytes] = []

    def flush(self) -> None:
        if self._writer is not None and self._lines:
            lines, self._lines = self._lines, []
            self._writer.put(lines)

    def write(self, **fields: str | float | None) -> None:
        """Adds the line of one request."""
        if self._writer is None:
            return
        if self._writer.text is not None:
            self._lines.append(self._writer.text.format_request(fields).encode() + b"\n")
        else:
            line = {"time": datetime.now(UTC), "level": "info", "logger": "service.access", **fields}
            self._lines.append(orjson.dumps(line, option=orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE))
