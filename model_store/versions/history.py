"""Which version was live, and when: the log behind CURRENT.

Every change writes the log first and CURRENT second. A process that dies in between leaves a last line that did not
happen: CURRENT contradicts it, and the reader drops it. A line that cannot be understood is counted; the others are kept.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Literal, get_args

from model_store.format.names import is_version

Action = Literal["activate", "rollback"]
_KINDS = {"action": str, "version": int, "at": str, "left": int, "why": str}


@dataclass(frozen=True)
class Event:
    action: Action
    version: int
    """The version that was made live."""
    at: str
    """ISO 8601 with its offset; a time without one is UTC."""
    left: int | None = None
    """The version that was rolled back from."""
    why: str | None = None
    """What was wrong with it, where the service itself rolled back."""


@dataclass(frozen=True)
class History:
    events: tuple[Event, ...]
    unreadable: int = 0
    """Lines that cannot be understood."""

    @classmethod
    def read(cls, text: str, current: int | Literal["unknown"] | None) -> History:
        """The events in `text`; `current` is the version that CURRENT names, or unknown where CURRENT is damaged."""
        lines = [_event(line) for line in text.split("\n") if line]
        if lines and lines[-1] is not None and current not in ("unknown", lines[-1].version):
            lines.pop()
        events = tuple(event for event in lines if event is not None)
        return cls(events, len(lines) - len(events))

    def to_text(self) -> str:
        return "".join(json.dumps(_fields(event)) + "\n" for event in self.events)

    def with_event(self, event: Event) -> History:
        return History((*self.events, event))

    def earlier(self, live: int | None) -> list[int]:
        """The versions that rolling back would reach, the nearest first.

        Rolling back undoes an activation: after activating 1, 2, 3 and rolling back once, 1 is what is left to go back to.
        """
        stack: list[int] = []
        for event in self.events:
            if event.action == "activate":
                stack.append(event.version)
            else:
                while stack and stack[-1] != event.version:
                    stack.pop()
        return [version for version in dict.fromkeys(reversed(stack)) if version != live]


def _fields(event: Event) -> dict[str, object]:
    return {name: value for name, value in asdict(event).items() if value is not None}


def _event(line: str) -> Event | None:
    """None for a line that cannot be understood."""
    try:
        content = json.loads(line)
        if not isinstance(content, dict) or not {"action", "version", "at"} <= content.keys() <= _KINDS.keys():
            return None
        if any(type(value) is not _KINDS[name] for name, value in content.items()):
            return None
        if content["action"] not in get_args(Action) or not is_version(str(content["version"])):
            return None
        at = datetime.fromisoformat(content["at"])
    except (ValueError, RecursionError):
        return None
    return Event(**content | {"at": content["at"] if at.tzinfo else at.replace(tzinfo=UTC).isoformat()})
