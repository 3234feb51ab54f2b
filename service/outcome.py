"""What a model says of some nodes, worked out for all requests of a batch at once: numpy charges by the call."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgformer import Answers, ExtendedAnswers, probabilities
from sgformer.config import Task


@dataclass(frozen=True)
class Outcome:
    """One row per node."""

    embeddings: NDArray[np.float32]
    logits: NDArray[np.float32]
    shares: NDArray[np.float32] | None
    """Probabilities; None for regression."""
    best: list[int]
    """The likeliest class of each."""
    exactness: str
    """exact or frozen."""
    finite: bool
    """Whether every number of the batch is one."""

    @classmethod
    def of(cls, answers: Answers | ExtendedAnswers, task: Task, exactness: str = "exact") -> Outcome:
        logits = answers.logits
        finite = _is_finite(logits) and _is_finite(answers.embeddings)
        with np.errstate(invalid="ignore"):  # a row that is not finite is refused before anybody sees its shares
            shares = None if task == "regression" else probabilities(logits, task)
        return cls(answers.embeddings, logits, shares, logits.argmax(axis=1).tolist(), exactness, finite)

    def parts(self, lengths: Sequence[int]) -> Iterator[Outcome]:
        """Its rows, handed out again to the requests that asked."""
        if len(lengths) == 1:
            yield self
            return
        start = 0
        for length in lengths:
            own = slice(start, start + length)
            shares = None if self.shares is None else self.shares[own]
            yield Outcome(self.embeddings[own], self.logits[own], shares, self.best[own], self.exactness, self.finite)
            start += length

    def row_that_is_not_finite(self) -> int | None:
        """JSON has no NaN, and an answer that is none must not look like one."""
        if self.finite:
            return None
        fine = np.isfinite(self.logits).all(axis=1) & np.isfinite(self.embeddings).all(axis=1)
        return None if fine.all() else int(fine.argmin())


def _is_finite(array: NDArray[Any]) -> bool:
    return math.isfinite(np.add.reduce(array, axis=None, dtype=np.float64))  # a sum passes NaN and infinity on
