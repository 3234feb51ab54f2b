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
    """How many stored states were recomputed for each new node; empty for known nodes."""
    sequence: int
    """The number of the last change of the graph that the answers contain."""

    @classmethod
    def of(cls, answers: Answers | ExtendedAnswers, task: Task, start: float, exactness: str, sequence: int) -> NodeResults:
        """`start` is when the batch began, by `time.perf_counter`."""
        logits = answers.logits
        is_finite = bool(np.isfinite(logits).all() and np.isfinite(answers.embeddings).all())
        with np.errstate(invalid="ignore"):  # rows that are not finite become errors later
            shares = None if task == "regression" else probabilities(logits, task)
        labels = logits.argmax(axis=1).tolist()
        recomputed = answers.recomputed.tolist() if isinstance(answers, ExtendedAnswers) else []
        seconds = time.perf_counter() - start
        return cls(answers.embeddings, logits, shares, labels, exactness, is_finite, seconds, recomputed, sequence)

    @property
    def parts(self) -> tuple[NodeResults, ...]:
        return (self,)

    def split(self, lengths: Sequence[int]) -> Iterator[NodeResults]:
        """The rows of each request of the batch, in order."""
        if len(lengths) == 1:
            yield self
            return
        start = 0
        for length in lengths:
            own = slice(start, start + length)
            shares = None if self.probabilities is None else self.probabilities[own]
            yield NodeResults(  # a third of the time of `_replace`
                self.embeddings[own],
                self.logits[own],
                shares,
                self.labels[own],
                self.exactness,
                self.is_finite,
                self.seconds,
                self.recomputed[own],
                self.sequence,
            )
            start += length

    def rows_not_finite(self) -> list[int]:
        """Rows with NaN or infinity, which JSON cannot hold."""
        if self.is_finite:
            return []
        is_finite = np.isfinite(self.logits).all(axis=1) & np.isfinite(self.embeddings).all(axis=1)
        return np.flatnonzero(~is_finite).tolist()

    def without(self, rows: Sequence[int]) -> NodeResults:
        return self._replace(
            embeddings=np.delete(self.embeddings, rows, axis=0),
            logits=np.delete(self.logits, rows, axis=0),
            probabilities=None if self.probabilities is None else np.delete(self.probabilities, rows, axis=0),
            labels=np.delete(self.labels, rows).tolist(),
        )


class BothResults(NamedTuple):
    """The results of the known and of the new nodes of a request, from one state of the graph."""

    known: NodeResults
    new: NodeResults

    @property
    def parts(self) -> tuple[NodeResults, ...]:
        return self.known, self.new

    @property
    def is_finite(self) -> bool:
        return self.known.is_finite and self.new.is_finite

    @property
    def sequence(self) -> int:
        return self.new.sequence

    @property
    def seconds(self) -> float:
        return self.known.seconds + self.new.seconds

    @property
    def recomputed(self) -> list[int]:
        return self.new.recomputed


class PartialResults(NamedTuple):
    """The results of the nodes that have an answer, and the errors of all other nodes of a request, by position."""

    results: NodeResults | BothResults | None
    """None if no node has an answer."""
    errors: dict[int, Exception]

    @property
    def recomputed(self) -> list[int]:
        return [] if self.results is None else self.results.recomputed


Results = NodeResults | BothResults
AnyResults = Results | PartialResults
