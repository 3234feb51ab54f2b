"""Beats every hundredth of a second, as long as the event loop comes round, and tells its listeners how late it was.

What would cost every request something, for the sake of a few, is done here instead: booking metrics, looking at the clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

BEAT_SECONDS = 0.01


class Heartbeat:
    def __init__(self, *listeners: Callable[[float], None]) -> None:
        """Each listener is told how many seconds late the beat is."""
        self._listeners = listeners
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(loop.time() + BEAT_SECONDS, self._beat, loop, loop.time() + BEAT_SECONDS)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self, loop: asyncio.AbstractEventLoop, expected: float) -> None:
        late = loop.time() - expected
        for listener in self._listeners:
            listener(late)
        self.start()
