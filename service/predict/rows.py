"""The rows of a question, checked and ready to be computed, alone or merged with the rows of other requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from service.engines.served_model import ServedModel
from service.errors import Refusal
from service.live.operations import encode_operations
from service.predict.new_nodes import new_nodes
from service.predict.questions import NewNode, Question
from service.predict.results import AnyResults, BothResults, NodeResults, PartialResults
from service.request_fields import NodeId
from sgformer import NewNodes, SgformerError
from sgformer.request_time.extension import Mode
from sgformer.request_time.neighborhood import cost_of

FORESEEN_LAYERS = 3
"""Up to this number of layers, the cost of an exact answer is known before the neighbourhood is gathered."""


@dataclass(eq=False)  # compared by identity: arrays have no truth value. A frozen dataclass takes twice the time to make
class KnownRows:
    """Rows of the graph."""

    rows: NDArray[np.int64]
    embeddings: bool
    read_cost: int = 0
    """The cost if the graph has changed, else 0."""

    has_exact_cost, reads_live_graph = True, False

    @classmethod
    def of(cls, model: ServedModel, ids: Sequence[NodeId], embeddings: bool) -> KnownRows:
        """Raises UnknownNodeError."""
        rows = model.rows(ids)
        return cls(rows, embeddings, model.known_cost(rows) if model.is_changed else 0)

    @property
    def kind(self) -> object:
        """Rows of the same kind may be merged."""
        return self.embeddings

    @property
    def cost(self) -> int:
        return self.read_cost or len(self.rows) * (4 if self.embeddings else 1)

    @staticmethod
    def states_read(model: ServedModel, batch: Sequence[KnownRows]) -> NDArray[np.int64]:
        """The rows whose states the answers are computed from."""
        rows = np.concatenate([part.rows for part in batch])
        if not batch[0].embeddings:
            rows = model.memo.missing(rows)
        return model.live.graph.adjacency.with_neighbors(rows, keep=True)

    def __len__(self) -> int:
        return len(self.rows)

    def can_merge(self, model: ServedModel) -> bool:
        return model.batch_invariant or not self.embeddings

    @staticmethod
    def compute(model: ServedModel, batch: Sequence[KnownRows]) -> list[NodeResults]:
        first, start = batch[0], time.perf_counter()
        rows = first.rows if len(batch) == 1 else np.concatenate([part.rows for part in batch])
        answers = model.known(rows, first.embeddings)
        exactness = model.exactness("exact", first.embeddings)
        results = NodeResults.of(answers, model.config.task, start, exactness, model.sequence)
        return list(results.split([len(part) for part in batch]))


@dataclass(eq=False)
class NewRows:
    """Nodes that the graph does not have."""

    new: NewNodes
    mode: Mode
    cost: int
    has_exact_cost: bool
    """False: the cost is a lower bound. The engine stops at `max_recompute`."""
    max_recompute: int

    reads_live_graph = False

    @classmethod
    def of(cls, model: ServedModel, new: NewNodes, mode: Mode, max_recompute: int) -> NewRows:
        """Raises Refusal (neighborhood_too_large) if the cost of exact answers, as far as it is known, exceeds the limit."""
        layers = model.config.layers if mode == "exact" else 1
        cost = cost_of(new, model.adjacency, layers)
        if mode == "exact" and cost > max_recompute:
            advice = "use mode frozen" if len(new) == 1 else "send fewer new nodes per request, or use mode frozen"
            message = (
                f"exact answers to {len(new):,} new node(s) read {cost:,} adjacency entries, the limit is {max_recompute:,}"
            )
            raise Refusal("neighborhood_too_large", f"{message}; {advice}", size=cost, limit=max_recompute)
        return cls(new, mode, cost, layers <= FORESEEN_LAYERS, max_recompute)

    @property
    def kind(self) -> object:
        return self.mode

    @staticmethod
    def states_read(_model: ServedModel, batch: Sequence[NewRows]) -> NDArray[np.int64]:
        return np.concatenate([part.new.neighbors for part in batch])

    def __len__(self) -> int:
        return len(self.new)

    def can_merge(self, model: ServedModel) -> bool:
        return model.batch_invariant and self.has_exact_cost

    @staticmethod
    def compute(model: ServedModel, batch: Sequence[NewRows]) -> list[NodeResults]:
        first, start = batch[0], time.perf_counter()
        merged = first.new if len(batch) == 1 else NewNodes.merged([part.new for part in batch])
        # The limit is per request. Only rows whose cost was checked when they arrived are merged.
        limit = first.max_recompute if len(batch) == 1 else None
        answers = model.extended(merged, first.mode, limit)
        exactness = model.exactness(answers.exactness)
        results = NodeResults.of(answers, model.config.task, start, exactness, model.sequence)
        return list(results.split([len(part) for part in batch]))


@dataclass(frozen=True, eq=False)
class BothRows:
    """Known and new nodes, computed together: the graph may change between two computations."""

    known: KnownRows
    new: NewRows

    reads_live_graph = False

    @property
    def kind(self) -> object:
        return self.known.kind, self.new.kind

    @property
    def cost(self) -> int:
        return self.known.cost + self.new.cost

    @property
    def has_exact_cost(self) -> bool:
        return self.new.has_exact_cost

    @staticmethod
    def states_read(model: ServedModel, batch: Sequence[BothRows]) -> NDArray[np.int64]:
        known = KnownRows.states_read(model, [part.known for part in batch])
        return np.concatenate([known, NewRows.states_read(model, [part.new for part in batch])])

    def __len__(self) -> int:
        return len(self.new)

    def can_merge(self, model: ServedModel) -> bool:
        return self.known.can_merge(model) and self.new.can_merge(model)

    @staticmethod
    def compute(model: ServedModel, batch: Sequence[BothRows]) -> list[BothResults]:
        known = KnownRows.compute(model, [part.known for part in batch])
        new = NewRows.compute(model, [part.new for part in batch])
        return [BothResults(*pair) for pair in zip(known, new, strict=True)]


class SingleRows:
    """The base of rows that the compute process computes from the live graph, never in a batch with other rows."""

    kind, cost, has_exact_cost, reads_live_graph = None, 0, False, True

    def can_merge(self, _model: ServedModel) -> bool:
        return False


@dataclass(frozen=True, eq=False)
class AssumedRows(SingleRows):
    """Nodes of the graph after the operations in `assuming`. The compute process finds their row numbers: operations may be
    many, and the numbers are valid only until the graph changes.
    """

    question: Question
    embeddings: bool
    max_recompute: int

    def __len__(self) -> int:
        return len(self.question.new_nodes)

    @staticmethod
    def compute(model: ServedModel, batch: Sequence[AssumedRows]) -> list[AnyResults]:
        (assumed_rows,) = batch
        question, limit = assumed_rows.question, assumed_rows.max_recompute
        assumed = model.assuming(encode_operations(model, question.assuming))
        nodes = [*question.nodes, *question.new_nodes]

        def prepare(part: Sequence[Any]) -> Any:
            return rows_of(assumed, question, part, assumed_rows.embeddings, limit)

        if question.on_error == "refuse":
            rows = prepare(nodes)
            return list(rows.compute(assumed, [rows]))
        errors = {position: error for position, error in bisect_errors(nodes, prepare) if error is not None}
        valid = [node for position, node in enumerate(nodes) if position not in errors]
        rows = prepare(valid) if valid else None
        return [PartialResults(None if rows is None else rows.compute(assumed, [rows])[0], errors)]


class Rows(Protocol):
    """The interface of rows for the batcher, which the classes above and the rows of other routes have."""

    @property
    def kind(self) -> object: ...
    @property
    def cost(self) -> int: ...
    @property
    def has_exact_cost(self) -> bool: ...
    @property
    def reads_live_graph(self) -> bool:
        """The rows are computed from the live graph, by numpy, whatever the engine is."""

    def __len__(self) -> int: ...
    def can_merge(self, model: ServedModel, /) -> bool: ...


def rows_of(
    model: ServedModel, question: Question, nodes: Sequence[Any], embeddings: bool, max_recompute: int
) -> KnownRows | NewRows | BothRows:
    """The rows of some nodes of a question: ids of known nodes, then new nodes. Raises the error of an invalid node."""
    if not question.new_nodes:
        return KnownRows.of(model, nodes, embeddings)
    new = nodes if not question.nodes else [node for node in nodes if isinstance(node, NewNode)]
    ids = nodes[: len(nodes) - len(new)]
    if not new:
        return KnownRows.of(model, ids, embeddings)
    known = KnownRows.of(model, ids, embeddings) if ids else None
    if len(new) != len(question.new_nodes):
        question = question.model_copy(update={"new_nodes": new})
    new_rows = NewRows.of(model, new_nodes(model, question), question.mode, max_recompute)
    return new_rows if known is None else BothRows(known, new_rows)


def bisect_errors(nodes: Sequence[Any], prepare: Callable[[Sequence[Any]], Any]) -> Iterator[tuple[int, Exception | None]]:
    """Finds the nodes that cannot be prepared, by bisection. Yields the position of each with its error.

    After a step without such a node, yields (-1, None), so that the caller can let other work run.
    """
    parts = [(0, len(nodes))]
    while parts:
        start, end = parts.pop()
        try:
            prepare(nodes[start:end])
        except (Refusal, SgformerError) as error:
            if end - start == 1:
                yield start, error
            else:
                middle = (start + end) // 2
                parts += (start, middle), (middle, end)
                yield -1, None


def refresh(model: ServedModel, batch: Sequence[Any]) -> bool:
    """Computes some of the stale states that the batch reads. Returns False if some are left."""
    return not model.is_changed or model.refresh(batch[0].states_read(model, batch))


def compute(model: ServedModel, batch: Sequence[Any]) -> list[AnyResults | Exception]:
    """One result or error per element of the batch. If the batch fails, each element is computed alone."""
    try:
        return list(batch[0].compute(model, batch))
    except Exception as error:  # an error of one request must not fail other requests
        return [error] if len(batch) == 1 else [compute(model, [rows])[0] for rows in batch]
