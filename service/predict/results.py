"""The results of a batch of nodes: arrays with one row per node, computed for all requests of the batch at once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sgformer import Answers, ExtendedAnswers, probabilities
from sgformer.config import Task


class NodeResults(NamedTuple):
    """One row per node."""

    embeddings: NDArray[np.float32]
    """Empty rows where the request did not ask for embeddings."""
    logits: NDArray[np.float32]
    probabilities: NDArray[np.float32] | None
    """None for regression."""
    labels: list[int]
    """The most probable class of each node."""
    exactness: str
    """exact, frozen or rounded."""
    is_finite: bool
    """False if a number of the batch is NaN or infinite."""
    seconds: float
    """Time to compute the whole batch."""
    recomputed: list[int]
    """Of new nodes, how many stored states were recomputed for each; empty for known nodes."""

    @classmethod
    def of(cls, answers: Answers | ExtendedAnswers, task: Task, start: float, exactness: str) -> NodeResults:
        """`start` is when the batch began, by `time.perf_counter`."""
        logits = answers.logits
        is_finite = bool(np.isfinite(logits).all() and np.isfinite(answers.embeddings).all())
        with np.errstate(invalid="ignore"):  # a request with a row that is not finite is refused later
            shares = None if task == "regression" else probabilities(logits, task)
        labels = logits.argmax(axis=1).tolist()
        return cls(answers.embeddings, logits, shares, labels, exactness, is_finite, time.perf_counter() - start, [])

    def split(self, lengths: Sequence[int]) -> Iterator[NodeResults]:
        """The rows of each request of the batch, in order."""
        if len(lengths) == 1:
            yield self
            return
        start = 0
        for length in lengths:
            own = slice(start, start + length)
            yield self._replace(
                embeddings=self.embeddings[own],
                logits=self.logits[own],
                probabilities=None if self.probabilities is None else self.probabilities[own],
                labels=self.labels[own],
                recomputed=self.recomputed[own],
            )
            start += length

    def first_row_not_finite(self) -> int | None:
        """JSON has no NaN: such a row is refused."""
        if self.is_finite:
            return None
        is_finite = np.isfinite(self.logits).all(axis=1) & np.isfinite(self.embeddings).all(axis=1)
        return None if is_finite.all() else int(is_finite.argmin())
