"""Known nodes of requests that come at the same time, in one product.

A few rows cost numpy as much as one. Answered on the event loop: even a thousand rows take less than a hop to a thread.
"""

from __future__ import annotations

import asyncio
import time

import numpy as np
from numpy.typing import NDArray

from service.loaded import LoadedModel
from service.outcome import Outcome

Asked = tuple[LoadedModel, NDArray[np.int64], asyncio.Future[Outcome]]


class KnownNodes:
    def __init__(self) -> None:
        self._asked: list[Asked] = []

    async def ask(self, loaded: LoadedModel, rows: NDArray[np.int64]) -> Outcome:
        """`rows` are rows of the graph, already checked: nothing that a caller sends can fail another's."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Outcome] = loop.create_future()
        if not self._asked:
            loop.call_soon(self._flush)
        self._asked.append((loaded, rows, answer))
        return await answer

    def _flush(self) -> None:
        asked, self._asked = self._asked, []
        by_model: dict[int, list[Asked]] = {}
        for one in asked:  # two versions, in the moment of a swap
            by_model.setdefault(id(one[0]), []).append(one)
        for together in by_model.values():
            if together[0][0].merges:
                _answer(together)
            else:
                for one in together:
                    _answer([one])


def _answer(asked: list[Asked]) -> None:
    try:
        rows = asked[0][1] if len(asked) == 1 else np.concatenate([rows for _, rows, _ in asked])
        loaded, start = asked[0][0], time.perf_counter()
        found = Outcome.of(loaded.engine.known(rows), loaded.config.task, start)
    except Exception as error:  # handed to those who wait
        for _, _, answer in asked:
            if not answer.done():
                answer.set_exception(error)
        return
    for (_, _, answer), own in zip(asked, found.parts([len(rows) for _, rows, _ in asked]), strict=True):
        if not answer.done():  # else its caller has gone
            answer.set_result(own)
