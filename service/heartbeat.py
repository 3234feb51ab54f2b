"""Beats every hundredth of a second, as long as the event loop comes round, and calls its listeners.

What would cost every request something, for the sake of a few, is done here instead: booking metrics, looking at the clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

BEAT_SECONDS = 0.01


class Heartbeat:
    def __init__(self, *listeners: Callable[[], None]) -> None:
        self._listeners = listeners
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(BEAT_SECONDS, self._beat)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        for listener in self._listeners:
            listener()
        self.start()
