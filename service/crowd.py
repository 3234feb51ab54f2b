"""Tells whether a crowd waits for long.

It does where many call, and answers to them take long, beat after beat. How long they take is known without a clock for
each: the sum of what was in hand, over time, divided by the number of those that left (Little's law). It has gone once
nobody had to be refused for a while, there is nothing to do, or only a few callers are left, however often they ask.
"""

from __future__ import annotations

import time
from collections.abc import Hashable

from service.settings import Settings

LATE_BEATS = 5
"""In a row: one may be the machine's, several are ours."""
CALM_SECONDS = 1.0
"""How long nobody must have been refused until a crowd is let in again."""
IDLE_BEATS = 25
"""In a row with nothing to do: whoever was refused had come together with others, not too often."""
CROWD = 0.5
"""Callers, for each place: those who are fewer may stay for as long as they like, and wait for each other."""
IN_HAND = 0.25
"""Of the places: with fewer taken it is not for each other that they wait. The rest of a crowd is still being read."""


class Crowd:
    def __init__(self, settings: Settings) -> None:
        self._size, self._most_seconds = CROWD * settings.max_inflight, settings.max_lag_seconds
        self._many_in_hand = IN_HAND * settings.max_inflight
        self.in_hand, self._left = 0, 0
        self._waited, self._changed_at, self._looked_at = 0.0, time.monotonic(), time.monotonic()
        self._late_beats, self._idle_beats, self._calm_at = 0, 0, 0.0
        self._callers, self._callers_before, self._counted_at = set[Hashable](), 0, 0.0

    def enter(self) -> None:
        self._pass_time()
        self.in_hand += 1

    def leave(self) -> None:
        self._pass_time()
        self.in_hand -= 1
        self._left += 1

    def called(self, caller: Hashable) -> None:
        """By a request, which may then enter or be refused."""
        self._callers.add(caller)

    def refused(self) -> None:
        """Because it waits: it is still there."""
        self._calm_at = time.monotonic() + CALM_SECONDS

    def waits_for_long(self) -> bool:
        """Called at every beat: looks at what happened since the last one."""
        self._idle_beats = 0 if self.in_hand or self._left else self._idle_beats + 1
        if self._left:
            self._late_beats = self._late_beats + 1 if self._is_late() else 0
        if self._left or not self.in_hand:
            self._left, self._waited, self._looked_at = 0, 0.0, time.monotonic()
        if self._idle_beats >= IDLE_BEATS or self._few_callers():
            self._late_beats, self._calm_at = 0, 0.0
        if self._late_beats >= LATE_BEATS:
            self._calm_at = time.monotonic() + CALM_SECONDS
        return time.monotonic() < self._calm_at

    def _is_late(self) -> bool:
        in_hand = self._waited / max(time.monotonic() - self._looked_at, 1e-9)
        many = max(len(self._callers), self._callers_before) > self._size and in_hand > self._many_in_hand
        return many and self._waited / self._left > self._most_seconds

    def _few_callers(self) -> bool:
        """Whether those who called within the last while are no crowd; at the end of that while."""
        if time.monotonic() < self._counted_at + CALM_SECONDS:
            return False
        self._callers_before, self._callers, self._counted_at = len(self._callers), set(), time.monotonic()
        return self._callers_before <= self._size

    def _pass_time(self) -> None:
        now = time.monotonic()
        self._waited += self.in_hand * (now - self._changed_at)
        self._changed_at = now
