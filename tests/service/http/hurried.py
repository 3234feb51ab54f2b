"""Work whose timers cost no time, and that no busy machine delays: the loop's clock goes on when there is nothing to do."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class _HurriedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._ask = self._selector.select  # type: ignore[attr-defined]  # what a loop waits in; the stubs do not know it
        self._selector.select = self._select  # type: ignore[attr-defined]  # the stubs do not know the selector of a loop

    def time(self) -> float:
        return self._now

    def _select(self, timeout: float | None = None) -> Any:
        found = self._ask(None if timeout is None else 0)
        if not found:
            self._now += timeout or 0.0
        return found


def run(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=_HurriedLoop) as runner:
        runner.run(work)
