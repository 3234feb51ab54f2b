"""Known nodes of requests that come at the same time, answered together: a few rows cost numpy as much as one.

Logits are read from the snapshot; only embeddings are computed. On the event loop: of few rows a hop to a thread would cost
more than the answer, and of many, writing the answer does.
"""

from __future__ import annotations

import asyncio
import time

import numpy as np
from numpy.typing import NDArray

from service.loaded import LoadedModel
from service.outcome import Outcome

Asked = tuple[NDArray[np.int64], asyncio.Future[Outcome]]
Kind = tuple[LoadedModel, bool]
"""What questions must have in common: the version, of which there are two in the moment of a swap; embeddings or none."""


class KnownNodes:
    def __init__(self) -> None:
        self._asked: dict[Kind, list[Asked]] = {}

    async def ask(self, loaded: LoadedModel, rows: NDArray[np.int64], embeddings: bool) -> Outcome:
        """`rows` are rows of the graph, already checked: nothing that a caller sends can fail another's."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Outcome] = loop.create_future()
        if not self._asked:
            loop.call_soon(self._flush)
        self._asked.setdefault((loaded, embeddings), []).append((rows, answer))
        return await answer

    def _flush(self) -> None:
        asked, self._asked = self._asked, {}
        for (loaded, embeddings), together in asked.items():
            if loaded.merges or not embeddings:
                _answer(loaded, embeddings, together)
            else:
                for one in together:
                    _answer(loaded, embeddings, [one])


def _answer(loaded: LoadedModel, embeddings: bool, asked: list[Asked]) -> None:
    try:
        rows = asked[0][0] if len(asked) == 1 else np.concatenate([rows for rows, _ in asked])
        start = time.perf_counter()
        found = Outcome.of(loaded.known(rows, embeddings), loaded.config.task, start)
    except Exception as error:  # handed to those who wait
        for _, answer in asked:
            if not answer.done():
                answer.set_exception(error)
        return
    for (_, answer), own in zip(asked, found.parts([len(rows) for rows, _ in asked]), strict=True):
        if not answer.done():  # else its caller has gone
            answer.set_result(own)
