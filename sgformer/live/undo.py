"""Dictionaries whose changes can be undone, so that an invalid request has no effect on the other requests of its group."""

from __future__ import annotations

from typing import Any, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")
_MISSING: Any = object()


class Journal:
    """The changes of several dictionaries, in order.

    An entry names its dictionary by a number: a reference would close a cycle, which only a garbage collection frees. All
    answers would wait for it.
    """

    def __init__(self) -> None:
        self.entries: list[tuple[int, Any, Any]] = []
        self.mappings: list[UndoDict[Any, Any]] = []

    def undo(self, length: int) -> None:
        """Undoes the changes after the first `length` entries, the last one first."""
        for number, key, value in reversed(self.entries[length:]):
            mapping = self.mappings[number]
            if value is _MISSING:
                dict.pop(mapping, key, None)
            else:
                dict.__setitem__(mapping, key, value)
        del self.entries[length:]


class UndoDict(dict[Key, Value]):
    """Changed by `d[key] = value` and `discard` only: these are recorded in the journal."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._entries, self._number = journal.entries, len(journal.mappings)
        journal.mappings.append(self)

    def __setitem__(self, key: Key, value: Value) -> None:
        self._entries.append((self._number, key, self.get(key, _MISSING)))
        super().__setitem__(key, value)

    def discard(self, key: Key) -> None:
        if key in self:
            self._entries.append((self._number, key, super().pop(key)))
