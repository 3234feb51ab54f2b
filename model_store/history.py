"""Which version was live, and when: the log behind CURRENT.

Every change writes the log first and CURRENT second. A process that dies in between leaves a last line that never came
true; whoever reads sees that CURRENT contradicts it, and drops it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal, get_args

Action = Literal["activate", "rollback"]


_KINDS = {"action": str, "version": int, "at": str, "left": int, "why": str}


@dataclass(frozen=True)
class Event:
    action: Action
    version: int
    """The version that was made live."""
    at: str
    """UTC, ISO 8601."""
    left: int | None = None
    """The version that was rolled back from."""
    why: str | None = None
    """What was wrong with it, where nobody but the service itself decided to leave it."""


@dataclass(frozen=True)
class History:
    events: tuple[Event, ...]

    @classmethod
    def read(cls, text: str, current: int | None) -> History:
        """Raises ValueError for a text that is no log."""
        events = tuple(_event(line) for line in text.splitlines() if line)
        if events and events[-1].version != current:
            events = events[:-1]
        return cls(events)

    def to_text(self) -> str:
        return "".join(json.dumps(_told(event)) + "\n" for event in self.events)

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


def _told(event: Event) -> dict[str, object]:
    return {name: value for name, value in asdict(event).items() if value is not None}


def _event(line: str) -> Event:
    content = json.loads(line)
    if not isinstance(content, dict) or not {"action", "version", "at"} <= set(content) <= set(_KINDS):
        raise ValueError("a line is no event")
    if content["action"] not in get_args(Action) or any(type(one) is not _KINDS[name] for name, one in content.items()):
        raise ValueError(f"no such event: {ascii(content)[:80]}")
    return Event(**content)
