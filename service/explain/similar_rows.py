"""A question for similar nodes, computed in the compute process and encoded as the fields of the answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.engines.served_model import ServedModel
from service.errors import Refusal
from service.explain.explain_rows import AnswerFields
from service.explain.questions import SimilarQuestion, as_question
from service.explain.similar_nodes import SimilarNodes
from service.predict.new_nodes import new_nodes
from service.predict.rows import SingleRows
from sgformer.nearest.scan import Nearest, unit_rows


@dataclass(frozen=True, eq=False)
class SimilarRows(SingleRows):
    """The nodes whose similar nodes are searched. The compute process looks up their rows."""

    question: SimilarQuestion
    max_recompute: int

    def __len__(self) -> int:
        return len(self.question.nodes) + len(self.question.new_nodes)

    @staticmethod
    def compute(model: ServedModel, batch: Sequence[SimilarRows]) -> list[AnswerFields]:
        (rows,) = batch
        start = time.perf_counter()
        fields = list_similar(model, rows.question, rows.max_recompute)
        return [AnswerFields(fields, model.sequence, time.perf_counter() - start)]


def list_similar(model: ServedModel, question: SimilarQuestion, max_recompute: int | None = None) -> dict[str, Any]:
    """The fields of the answer. Raises UnknownNodeError, NewNodeError, NeighborhoodTooLarge and Refusal."""
    similar = model.derive(SimilarNodes)
    own_rows, queries = _queries(model, similar, question, max_recompute)
    found = similar.search(model, queries, question.k + 1)  # one more: a known node finds itself
    ids = [*question.nodes, *(node.id for node in question.new_nodes)]
    lists = [_neighbors(model, found, query, row, question.k) for query, row in enumerate(own_rows)]
    results = [{"node": node, "neighbors": neighbors} for node, neighbors in zip(ids, lists, strict=True)]
    return {"results": results, "exact": similar.is_exact(model), "recall": similar.recall}


def _queries(
    model: ServedModel, similar: SimilarNodes, question: SimilarQuestion, max_recompute: int | None
) -> tuple[list[int], NDArray[Any]]:
    """The row (-1 for a new node) and the unit embedding of every node."""
    parts, own_rows = [], []
    if question.nodes:
        rows = model.rows(question.nodes)
        own_rows = rows.tolist()
        parts.append(similar.unit_embeddings(model, rows))
    if question.new_nodes:
        new = new_nodes(model, as_question(question.new_nodes))
        embeddings = model.extended(new, "exact", max_recompute).embeddings
        finite = np.isfinite(embeddings).all(axis=1)
        if not finite.all():
            node = question.new_nodes[int(finite.argmin())].id
            raise Refusal("no_answer", f"the model has no finite answer for node {node!r}", node=node)
        own_rows += [-1] * len(question.new_nodes)
        parts.append(unit_rows(embeddings))
    return own_rows, np.concatenate(parts)


def _neighbors(model: ServedModel, found: Nearest, query: int, own_row: int, k: int) -> list[dict[str, Any]]:
    rows = found.rows[query]
    kept = np.flatnonzero((rows != own_row) & (rows >= 0))[:k]
    names = model.names(rows[kept]) if len(kept) else []
    similarities = found.similarities[query][kept].astype(np.float64).round(6).tolist()
    return [{"node": node, "similarity": similarity} for node, similarity in zip(names, similarities, strict=True)]
