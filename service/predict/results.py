"""What a model says of some nodes, worked out for all requests of a batch at once: numpy charges by the call."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sgformer import Answers, ExtendedAnswers, probabilities
from sgformer.config import Task


class Outcome(NamedTuple):
    """One row per node."""

    embeddings: NDArray[np.float32]
    """Rows without numbers where nobody asked for them."""
    logits: NDArray[np.float32]
    shares: NDArray[np.float32] | None
    """Probabilities; None for regression."""
    best: list[int]
    """The likeliest class of each."""
    exactness: str
    """exact, frozen or rounded."""
    finite: bool
    """Whether every number of the batch is one."""
    seconds: float
    """How long the whole batch took."""

    @classmethod
    def of(cls, answers: Answers | ExtendedAnswers, task: Task, start: float, exactness: str) -> Outcome:
        """`start` is when the batch began, by the clock that counts performance."""
        logits = answers.logits
        finite = bool(np.isfinite(logits).all() and np.isfinite(answers.embeddings).all())
        with np.errstate(invalid="ignore"):  # a row that is not finite is refused before anybody sees its shares
            shares = None if task == "regression" else probabilities(logits, task)
        best = logits.argmax(axis=1).tolist()
        return cls(answers.embeddings, logits, shares, best, exactness, finite, time.perf_counter() - start)

    def parts(self, lengths: Sequence[int]) -> Iterator[Outcome]:
        """Its rows, handed out again to the requests that asked."""
        if len(lengths) == 1:
            yield self
            return
        start = 0
        for length in lengths:
            own = slice(start, start + length)
            shares = None if self.shares is None else self.shares[own]
            rows = self.embeddings[own], self.logits[own], shares, self.best[own]
            yield Outcome(*rows, self.exactness, self.finite, self.seconds)
            start += length

    def row_that_is_not_finite(self) -> int | None:
        """JSON has no NaN, and an answer that is none must not look like one."""
        if self.finite:
            return None
        fine = np.isfinite(self.logits).all(axis=1) & np.isfinite(self.embeddings).all(axis=1)
        return None if fine.all() else int(fine.argmin())
