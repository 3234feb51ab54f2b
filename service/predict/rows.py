"""The rows of a question, checked and ready to be computed, alone or merged with the rows of other requests."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.engines.served_model import ServedModel
from service.predict.results import NodeResults
from sgformer import NewNodes
from sgformer.request_time.extension import Mode
from sgformer.request_time.neighborhood import cost_of

FORESEEN_LAYERS = 3
"""Up to this number of layers, the cost of an exact answer is known before the graph is walked."""


@dataclass(frozen=True, eq=False)  # compared by identity: arrays have no truth value
class KnownRows:
    """Rows of the graph."""

    rows: NDArray[np.int64]
    embeddings: bool

    is_foreseen = True

    @property
    def kind(self) -> object:
        """Rows of the same kind may be merged."""
        return self.embeddings

    @property
    def cost(self) -> int:
        return len(self.rows) * (4 if self.embeddings else 1)

    def __len__(self) -> int:
        return len(self.rows)

    def can_merge(self, model: ServedModel) -> bool:
        return model.merges or not self.embeddings

    @staticmethod
    def compute(model: ServedModel, questions: Sequence[KnownRows]) -> NodeResults:
        first, start = questions[0], time.perf_counter()
        rows = first.rows if len(questions) == 1 else np.concatenate([question.rows for question in questions])
        answers = model.known(rows, first.embeddings)
        return NodeResults.of(answers, model.config.task, start, model.exactness("exact", first.embeddings))


@dataclass(frozen=True, eq=False)
class NewRows:
    """Nodes that the graph does not have."""

    new: NewNodes
    mode: Mode
    cost: int
    is_foreseen: bool
    """False: the cost is a lower bound. The engine stops at `max_recompute`."""
    max_recompute: int

    @classmethod
    def of(cls, model: ServedModel, new: NewNodes, mode: Mode, max_recompute: int) -> NewRows:
        layers = model.config.layers if mode == "exact" else 1
        return cls(new, mode, cost_of(new, model.snapshot.adjacency, layers), layers <= FORESEEN_LAYERS, max_recompute)

    @property
    def kind(self) -> object:
        return self.mode

    def __len__(self) -> int:
        return len(self.new)

    def can_merge(self, model: ServedModel) -> bool:
        return model.merges and self.is_foreseen

    @staticmethod
    def compute(model: ServedModel, questions: Sequence[NewRows]) -> NodeResults:
        first, start = questions[0], time.perf_counter()
        merged = first.new if len(questions) == 1 else NewNodes.merged([question.new for question in questions])
        # The limit is per request. Only questions whose cost was checked when they arrived are merged.
        limit = first.max_recompute if len(questions) == 1 else None
        answers = model.engine.extended(merged, first.mode, limit)
        results = NodeResults.of(answers, model.config.task, start, model.exactness(answers.exactness))
        return results._replace(recomputed=answers.recomputed.tolist())


Rows = KnownRows | NewRows


def compute(model: ServedModel, questions: Sequence[Any]) -> list[NodeResults | Exception]:
    """One result or error per question of the same kind. If a batch fails, each question is computed alone."""
    try:
        results = questions[0].compute(model, questions)
    except Exception as error:  # belongs to the request that asked
        return [error] if len(questions) == 1 else [compute(model, [question])[0] for question in questions]
    return list(results.split([len(question) for question in questions]))
