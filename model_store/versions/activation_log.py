"""CURRENT and HISTORY of one model: the live version, and every activation and roll-back before it.

Every change writes HISTORY first and CURRENT second. If a process dies in between, the last line of HISTORY contradicts
CURRENT, and readers drop that line. A reader counts the lines that it cannot parse and keeps the others.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

from model_store.errors import SnapshotError, StoreError
from model_store.format.files import translate_os_errors
from model_store.format.layout import is_version
from model_store.versions.durable import write_durably
from model_store.versions.leftovers import CURRENT, HISTORY

MAX_TEXT_BYTES = 64 * 2**20
Action = Literal["activate", "rollback"]
Current = int | Literal["unknown"] | None
"""The version that CURRENT names; "unknown" if CURRENT is damaged."""
_FIELD_TYPES = {"action": str, "version": int, "at": str, "left": int, "why": str}


@dataclass(frozen=True)
class HistoryEntry:
    action: Action
    version: int
    """The version that became live."""
    at: str
    """ISO 8601 with an offset; a time without an offset is UTC."""
    left: int | None = None
    """The version that a roll-back replaced."""
    why: str | None = None
    """The reason of an automatic roll-back by the service."""


@dataclass(frozen=True)
class History:
    entries: tuple[HistoryEntry, ...]
    unreadable: int = 0
    """The number of lines that cannot be parsed."""

    @classmethod
    def parse(cls, text: str, current: Current) -> History:
        lines = [_parse_line(line) for line in text.split("\n") if line]
        if lines and lines[-1] is not None and current not in ("unknown", lines[-1].version):
            lines.pop()  # the process that wrote this line died before it wrote CURRENT
        entries = tuple(entry for entry in lines if entry is not None)
        return cls(entries, len(lines) - len(entries))

    def to_bytes(self) -> bytes:
        rows = ({name: value for name, value in asdict(entry).items() if value is not None} for entry in self.entries)
        return "".join(json.dumps(row) + "\n" for row in rows).encode()

    def earlier(self, live: int | None) -> list[int]:
        """Returns the versions that a roll-back can reach, nearest first.

        A roll-back undoes an activation: after activating 1, 2, 3 and one roll-back, only version 1 is left.
        """
        stack: list[int] = []
        for entry in self.entries:
            if entry.action == "activate":
                stack.append(entry.version)
            else:
                while stack and stack[-1] != entry.version:
                    stack.pop()
        return [version for version in dict.fromkeys(reversed(stack)) if version != live]


@dataclass(frozen=True)
class ActivationState:
    live: int | None
    history: History
    problem: str | None
    """One sentence about damage or unreadable files; `live` and `history` then hold the readable part."""


class ActivationLog:
    """Reads and writes CURRENT and HISTORY. The caller of a method that writes holds the model's lock."""

    def __init__(self, folder: Path) -> None:
        self._current, self._history = folder / CURRENT, folder / HISTORY

    def live(self) -> int | None:
        """Returns the live version. Raises SnapshotError if CURRENT is damaged, StoreUnavailable if it cannot be read."""
        text = _read_text(self._current)
        if text is None:
            return None
        if not is_version(text.strip()):
            raise SnapshotError(CURRENT, f"holds {text[:20]!r}, expected the number of a version; activate one to repair it")
        return int(text)

    def history(self) -> History:
        """Raises as `live` does. Counts damaged lines of HISTORY instead of raising."""
        live = self.live()
        while True:
            text = _read_text(self._history)
            if (now := self.live()) == live:
                return History.parse(text or "", live)
            live = now  # another version went live between the two reads

    def state(self) -> ActivationState:
        """Returns everything that can be read, and describes the damage."""
        current: Current
        problems, history = [], History(())
        try:
            current = self.live()
        except StoreError as error:
            current = "unknown"
            problems.append(str(error))
        try:
            unknown = current == "unknown"
            history = History.parse(_read_text(self._history) or "", current) if unknown else self.history()
        except StoreError as error:
            problems.append(str(error))
        if history.unreadable:
            problems.append(
                f"{HISTORY}: {history.unreadable} line(s) cannot be understood; the next activation or roll-back keeps the "
                f"other lines and renames the file to {HISTORY}.damaged"
            )
        return ActivationState(None if current == "unknown" else current, history, "; ".join(problems) or None)

    def repair(self) -> History:
        """Renames a damaged CURRENT or HISTORY, and returns the readable history. Changes nothing after an I/O error."""
        current: Current
        try:
            current = self.live()
        except SnapshotError:
            current = "unknown"
        try:
            history = History.parse(_read_text(self._history) or "", current)
        except SnapshotError:  # not a regular file
            history = History((), unreadable=1)
        if current == "unknown":
            _rename_damaged(self._current)
        if history.unreadable:
            _rename_damaged(self._history)
            history = History(history.entries)
            write_durably(self._history, history.to_bytes())
        return history

    def append(self, history: History, entry: HistoryEntry) -> None:
        """Makes a version live. HISTORY is written before CURRENT: see the top of this module."""
        write_durably(self._history, History((*history.entries, entry)).to_bytes())
        write_durably(self._current, f"{entry.version}\n".encode())


def _rename_damaged(path: Path) -> None:
    path.replace(path.with_name(f"{path.name}.damaged"))


def _read_text(path: Path) -> str | None:
    """Returns the text of a small file, with invalid UTF-8 replaced; None if the file does not exist."""
    with translate_os_errors(path.name):
        try:
            with path.open("rb") as file:
                return file.read(MAX_TEXT_BYTES).decode(errors="replace")
        except FileNotFoundError:
            return None


def _parse_line(line: str) -> HistoryEntry | None:
    """Returns None for a line that cannot be parsed."""
    try:
        fields = json.loads(line)
        entry = HistoryEntry(**fields)
        at = datetime.fromisoformat(entry.at)
        types_match = all(type(value) is _FIELD_TYPES[name] for name, value in fields.items())
    except (TypeError, ValueError, RecursionError):
        return None
    if not types_match or entry.action not in get_args(Action) or not is_version(str(entry.version)):
        return None
    return entry if at.tzinfo else replace(entry, at=at.replace(tzinfo=UTC).isoformat())
