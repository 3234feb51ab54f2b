"""Reads the store in threads that nothing else waits for: a network file system may stall for minutes.

A thread that a stalled file system holds cannot be ended. A few such threads in the pool of the event loop would block all
other work of the pool, and the exit of the process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from model_store import StoreUnavailable

MAX_THREADS = 8
"""Threads of one reader. Further calls wait, within their time limit."""
Result = TypeVar("Result")


class StoreReader:
    """Used by one event loop."""

    def __init__(self, seconds: float | None = None) -> None:
        """`seconds`: the time limit of a call; None: a call waits for as long as the store takes."""
        self._seconds, self._threads = seconds, asyncio.Semaphore(MAX_THREADS)

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Calls a function in a thread of its own. Raises what it raises, or StoreUnavailable after the time limit."""
        try:
            async with asyncio.timeout(self._seconds):
                await self._threads.acquire()
                return await self._start(function, arguments)
        except TimeoutError:
            raise StoreUnavailable(f"the store has not answered for {self._seconds or 0:g} s") from None

    def _start(self, function: Callable[..., Result], arguments: tuple[Any, ...]) -> asyncio.Future[Result]:
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Result] = loop.create_future()

        def finish(settle: Callable[[Any], None], value: Any) -> None:
            self._threads.release()
            if not result.done():  # else the caller has given up
                settle(value)

        def work() -> None:
            settle: Callable[[Any], None] = result.set_result
            value: Any
            try:
                value = function(*arguments)
            except BaseException as error:  # the caller gets it
                settle, value = result.set_exception, error
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(finish, settle, value)

        threading.Thread(target=work, name="store", daemon=True).start()
        return result
