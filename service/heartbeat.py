"""Beats every hundredth of a second, as long as the event loop comes round, and calls its listeners.

What would cost every request something, for the sake of a few, is done here instead: booking metrics, looking at the clock.
A listener that fails, as where nobody reads the log any more, is called again at the next beat, and stops no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

LOG = logging.getLogger("service.heartbeat")
BEAT_SECONDS = 0.01


class Heartbeat:
    def __init__(self, *listeners: Callable[[], None]) -> None:
        self._listeners = listeners
        self._failing: set[Callable[[], None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(BEAT_SECONDS, self._beat)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        self.start()
        for listener in self._listeners:
            try:
                listener()
            except Exception:  # whatever it is: the others are called, and this one again
                if listener not in self._failing:  # told once: a hundred lines a second would help nobody
                    LOG.exception("%s failed; it is called again", listener.__qualname__)
                self._failing.add(listener)
            else:
                self._failing.discard(listener)
