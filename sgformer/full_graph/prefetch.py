"""Computes the next result while the caller uses the current one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def prefetched(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """The results of `function` in order. While the caller uses a result, a thread computes the next one, but no more."""
    with ThreadPoolExecutor(1, thread_name_prefix="prefetch") as pool:
        waiting: Future[Result] | None = None
        try:
            for item in items:
                ready, waiting = waiting, pool.submit(function, item)
                if ready is not None:
                    yield ready.result()
            if waiting is not None:
                yield waiting.result()
        finally:
            pool.shutdown(cancel_futures=True)
