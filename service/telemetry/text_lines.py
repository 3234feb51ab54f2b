"""The log as text for a person at a terminal. Colours need a terminal; NO_COLOR and TERM=dumb switch them off."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
LEVELS = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}


class TextLines:
    def __init__(self, descriptor: int) -> None:
        self._is_terminal = os.isatty(descriptor)
        self._has_colours = self._is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.columns = os.get_terminal_size(descriptor).columns if self._is_terminal else 0
        """The width of the terminal when the process started; 0 without a terminal."""

    def style(self, text: str, colour: str) -> str:
        return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if self._has_colours and colour else text

    def format_record(self, record: logging.LogRecord, extra: dict[str, Any]) -> str:
        message = self.style(record.getMessage(), LEVELS.get(record.levelname, ""))
        facts = "  ".join(_fact(name, value) for name, value in extra.items())
        line = f"{self._time(record.created)} {record.levelname.lower():8}{message}"
        return line + (f"  {self.style(facts, 'dim')}" if facts else "")

    def format_request(self, fields: dict[str, Any]) -> str:
        """The line of the access log."""
        code, error = fields["code"], fields["error"]
        colour = "red" if code >= 500 else "yellow" if code >= 400 else "green"
        line = f"{self._time(time.time())} {self.style(str(code), colour)}     {fields['method']:5}{fields['route']:16}"
        line += f"{fields['milliseconds']:9.2f} ms {fields['bytes']:9,} B"
        return line + (f"  {self.style(error, colour)}" if error else "")

    def _time(self, at: float) -> str:
        start = "\r" if self._is_terminal else ""  # overwrites the ^C that a terminal shows
        return start + self.style(time.strftime("%H:%M:%S", time.localtime(at)), "dim")


def _fact(name: str, value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(_fact(key, part) for key, part in value.items())
    return f"{name} {value:.2f} s" if isinstance(value, float) else f"{name} {value}"
