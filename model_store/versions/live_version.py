"""CURRENT and HISTORY of one model: which version is live, which were live before, and what is damaged there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from model_store.errors import SnapshotError, StoreError
from model_store.format.files import blaming_the_system
from model_store.format.names import is_version
from model_store.versions import durable
from model_store.versions.history import Event, History
from model_store.versions.leftovers import CURRENT, HISTORY

MAX_TEXT_BYTES = 64 * 2**20


@dataclass(frozen=True)
class LiveState:
    live: int | None
    history: History
    problem: str | None
    """What is damaged or cannot be read, in one sentence; `live` and `history` then hold what is left."""


class LiveLog:
    """Methods that write expect the caller to hold the lock of the model."""

    def __init__(self, folder: Path) -> None:
        self._current, self._history = folder / CURRENT, folder / HISTORY

    def live(self) -> int | None:
        """Raises SnapshotError: CURRENT is damaged; StoreUnavailable: it cannot be read."""
        text = _text(self._current)
        if text is None:
            return None
        if not is_version(text.strip()):
            raise SnapshotError(CURRENT, f"holds {text[:20]!r}, expected the number of a version; activating one mends it")
        return int(text)

    def history(self) -> History:
        """Raises as `live`. Damaged lines of HISTORY are counted, not raised."""
        live = self.live()
        while True:
            text = _text(self._history)
            if (now := self.live()) == live:
                return History.read(text or "", live)
            live = now  # another version went live between the two readings

    def state(self) -> LiveState:
        """Everything that can be read, whatever is damaged."""
        live: int | Literal["unknown"] | None
        problems, history = [], History(())
        try:
            live = self.live()
        except StoreError as error:
            live = "unknown"
            problems.append(str(error))
        try:
            history = self.history() if live != "unknown" else History.read(_text(self._history) or "", live)
        except StoreError as error:
            problems.append(str(error))
        if history.unreadable:
            problems.append(
                f"{HISTORY}: {history.unreadable} line(s) cannot be understood; the next activation or roll-back keeps the "
                f"other lines and sets the file aside as {HISTORY}.damaged"
            )
        return LiveState(None if live == "unknown" else live, history, "; ".join(problems) or None)

    def mend(self) -> History:
        """Sets aside a CURRENT or HISTORY that is damaged, and returns what HISTORY held. An I/O error changes nothing."""
        live: int | Literal["unknown"] | None
        try:
            live = self.live()
        except SnapshotError:
            live = "unknown"
        try:
            history = History.read(_text(self._history) or "", live)
        except SnapshotError:  # it is no file
            history = History((), unreadable=1)
        if live == "unknown":
            _set_aside(self._current)
        if history.unreadable:
            _set_aside(self._history)
            history = History(history.events)
            durable.write_durably(self._history, history.to_text().encode())
        return history

    def make_live(self, history: History, event: Event) -> None:
        """HISTORY first, then CURRENT: `history` describes a death between the two."""
        durable.write_durably(self._history, history.with_event(event).to_text().encode())
        durable.write_durably(self._current, f"{event.version}\n".encode())


def _set_aside(path: Path) -> None:
    path.replace(path.with_name(f"{path.name}.damaged"))


def _text(path: Path) -> str | None:
    """The text of a small file, bytes that are no text replaced; None where there is no file."""
    with blaming_the_system(path.name):
        try:
            with path.open("rb") as file:
                return file.read(MAX_TEXT_BYTES).decode(errors="replace")
        except FileNotFoundError:
            return None
