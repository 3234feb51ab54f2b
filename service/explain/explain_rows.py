"""The explanation of one node, computed in the compute process and encoded as the fields of the answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from model_store.live_graph.operations import feature_rows
from service.engines.engine import ignoring_overflow
from service.engines.served_model import ServedModel
from service.errors import Refusal
from service.explain.questions import ExplainQuestion, as_question
from service.predict.new_nodes import new_nodes
from service.predict.rows import SingleRows
from sgformer import NeighborhoodTooLarge, SparseRows
from sgformer.arrays.operations import Indices, run_starts
from sgformer.explain.explanation import Counterfactual, Effects, Explanation, decisions, explain
from sgformer.explain.features import grouped_variants, numbered_variants
from sgformer.explain.subject import Budget, Subject
from sgformer.features import FeatureRows


class AnswerFields(NamedTuple):
    """An answer without the fields that name its version."""

    fields: dict[str, Any]
    """Plain values and numpy arrays."""
    sequence: int
    seconds: float
    recomputed: Sequence[int] = ()


@dataclass(frozen=True, eq=False)
class ExplainRows(SingleRows):
    """The node to explain. The compute process looks up its row: the graph may change while the question waits."""

    question: ExplainQuestion
    max_cost: int

    def __len__(self) -> int:
        return 1

    @staticmethod
    def compute(model: ServedModel, batch: Sequence[ExplainRows]) -> list[AnswerFields]:
        (rows,) = batch
        start = time.perf_counter()
        try:
            with ignoring_overflow():
                fields = describe(model, rows.question, rows.max_cost)
        except NeighborhoodTooLarge as error:
            raise _too_large(rows.question, error) from None
        return [AnswerFields(fields, model.sequence, time.perf_counter() - start)]


def _too_large(question: ExplainQuestion, error: NeighborhoodTooLarge) -> Refusal:
    limit = f"the limit is {error.limit:,} (SGF_MAX_EXPLAIN)"
    message = f"an explanation of node {question.node_id!r} reads {error.size:,} states or more, {limit}"
    return Refusal("neighborhood_too_large", message, node=question.node_id, size=error.size, limit=error.limit)


def describe(model: ServedModel, question: ExplainQuestion, max_cost: int | None = None) -> dict[str, Any]:
    """The fields of the answer. Raises UnknownNodeError, NewNodeError, Refusal and NeighborhoodTooLarge."""
    graph, budget, row = model.live.graph, Budget(max_cost), None
    if question.new_node is None:
        row = int(model.rows([question.node_id])[0])
        features = known_features(model, row)
        subject = Subject.known(graph, row, budget, features)
    else:
        new = new_nodes(model, as_question([question.new_node]))
        subject = Subject.new(graph, new, budget)
        features = new.features  # type: ignore[assignment]  # one row is not mixed
    names, variants = (None, None) if features is None else _feature_variants(model, features)
    explanation = explain(subject, model.config.task, question.top, variants)
    if not np.isfinite(explanation.branches.logits).all():
        raise Refusal("no_answer", f"the model has no finite answer for node {question.node_id!r}", node=question.node_id)
    return {"node": question.node_id} | _fields(model, subject, explanation, names)


def known_features(model: ServedModel, row: int) -> FeatureRows | None:
    """The raw features of a node as it is now; None if the snapshot does not have them."""
    changed = model.live.features(row)
    if changed is not None:
        return feature_rows(changed, model.config.in_features)
    return model.snapshot.raw_features(np.array([row])) if row < model.snapshot.states.num_nodes else None


def _feature_variants(model: ServedModel, row: FeatureRows) -> tuple[list[int | str], FeatureRows]:
    """The names, or the numbers, of the features that the node has, and for each of them a row without it."""
    graph_model = model.live.graph.model
    if model.schema is None:
        numbers, rows = numbered_variants(graph_model, row)
        return numbers.tolist(), rows
    dense = row.toarray() if isinstance(row, SparseRows) else row
    columns = model.schema.columns
    starts = run_starts(np.array([column.width for column in columns])).tolist()
    missing = [column.encode(None) if column.fill is not None else [0.0] * column.width for column in columns]
    groups, rows = grouped_variants(graph_model, np.asarray(dense, dtype=np.float64), starts, missing)
    return [columns[group].name for group in groups], rows


def _fields(model: ServedModel, subject: Subject, explanation: Explanation, names: Any) -> dict[str, Any]:
    branches = explanation.branches
    logits, counterfactual, fidelity = branches.logits[0], explanation.counterfactual, explanation.fidelity
    return {
        **_decision(model, logits),
        "exactness": model.exactness("exact"),
        "logits": logits,
        "branches": {name: part[0] for name, part in branches._asdict().items()},
        "degree": len(subject.neighbors),
        "neighbors": _neighbors(model, explanation.neighbors),
        "features": None if explanation.features is None else _features(names, explanation.features),
        "counterfactual": None if counterfactual is None else _counterfactual(model, counterfactual),
        "fidelity": None if fidelity is None else {"plus": fidelity[0], "minus": fidelity[1]},
    }


def _neighbors(model: ServedModel, effects: Effects) -> list[dict[str, Any]]:
    entries = zip(_ids(model, effects.items), effects.effects, effects.without, strict=True)
    return [{"node": node, "effect": effect, **_label_without(model, without)} for node, effect, without in entries]


def _features(names: Sequence[int | str], effects: Effects) -> list[dict[str, Any]]:
    pairs = zip(effects.items.tolist(), effects.effects, strict=True)
    return [{"feature": names[item], "effect": effect} for item, effect in pairs]


def _counterfactual(model: ServedModel, counterfactual: Counterfactual) -> dict[str, Any]:
    return {"without": _ids(model, counterfactual.removed)} | _decision(model, counterfactual.logits)


def _ids(model: ServedModel, rows: Indices) -> list[int | str]:
    return model.names(rows) if len(rows) else []


def _decision(model: ServedModel, logits: Any) -> dict[str, Any]:
    """The decision in the fields that /predict has for the task of the model."""
    if model.config.task == "regression":
        return {"value": logits[0] if len(logits) == 1 else logits}
    decided = decisions(model.config.task, logits[None])[0]
    if model.config.task == "multiclass":
        return {"label": int(decided[0]), "class": model.class_names[decided[0]]}
    labels = np.flatnonzero(decided).tolist()
    return {"labels": labels, "classes": [model.class_names[label] for label in labels]}


def _label_without(model: ServedModel, logits: Any) -> dict[str, Any]:
    decision = _decision(model, logits)
    return {f"{name}_without": decision[name] for name in ("label", "labels", "value") if name in decision}
