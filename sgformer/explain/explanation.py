"""An explanation: the parts of an answer, the effects of edges and features, and edges that the decision depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgformer.arrays.operations import Indices
from sgformer.config import Task
from sgformer.explain.branches import Branches
from sgformer.explain.subject import Subject, repeated

MAX_REMOVED = 32
"""Most edges that the search for a counterfactual removes."""


@dataclass(frozen=True)
class Effects:
    """The effects of edges or features, strongest first: the logits minus the logits without the edge or feature."""

    items: Indices
    """Rows of neighbours, or positions in the list of feature variants."""
    effects: NDArray[Any]
    without: NDArray[Any]
    """The logits without each edge or feature."""


@dataclass(frozen=True)
class Counterfactual:
    """Edges without which the decision changes."""

    removed: Indices
    """The neighbours at the other ends of the edges."""
    logits: NDArray[Any]


@dataclass(frozen=True)
class Explanation:
    branches: Branches
    """The parts of the logits: one row."""
    neighbors: Effects
    features: Effects | None
    counterfactual: Counterfactual | None
    fidelity: tuple[float, float] | None
    """fidelity+ and fidelity- of the reported neighbours, as PyTorch Geometric defines them for explanations of a model;
    None for regression."""


def explain(subject: Subject, task: Task, top: int, feature_variants: Any = None) -> Explanation:
    """Explains the answer for a node.

    Args:
        top: how many neighbours, and how many features, to report. The effects of all are computed.
        feature_variants: rows of features, each without one feature of the node; None if its features are not known.

    Raises:
        NeighborhoodTooLarge: the explanation exceeds the budget of the subject.
    """
    all_neighbors = subject.neighbors
    logits = subject.logits([all_neighbors, *(np.delete(all_neighbors, position) for position in range(len(all_neighbors)))])
    whole, without = logits[0], logits[1:]
    neighbors = _ranked(task, whole, without, all_neighbors, top)
    counterfactual, fidelity = None, None
    if task != "regression":
        counterfactual = CounterfactualSearch(subject, task, whole).run(all_neighbors, without)
        fidelity = _fidelity(subject, task, whole, neighbors.items)
    features = None
    if feature_variants is not None:
        count = feature_variants.shape[0]
        changed = subject.logits([all_neighbors] * count, feature_variants) if count else without[:0]
        features = _ranked(task, whole, changed, np.arange(count), top)
    return Explanation(subject.branches(), neighbors, features, counterfactual, fidelity)


def decisions(task: Task, logits: NDArray[Any]) -> NDArray[Any]:
    """What a model decides for rows of logits: (n, 1) classes, or (n, outputs) whether each label applies."""
    return logits > 0 if task == "multilabel" else logits.argmax(axis=1)[:, None]


def margins(task: Task, logits: NDArray[Any], reference: NDArray[Any]) -> NDArray[Any]:
    """How far rows of logits are from a decision other than that of `reference`; negative if they have another one."""
    if task == "multilabel":
        return np.asarray(np.where(reference > 0, logits, -logits).min(axis=1))
    label = int(reference.argmax())
    others = np.delete(logits, label, axis=1)
    return np.asarray(logits[:, label] - (others.max(axis=1) if others.shape[1] else 0))


class CounterfactualSearch:
    """Looks for a small set of edges without which the decision changes. Every answer that it compares is exact.

    It removes more and more edges, beginning with those that support the decision most, until the decision changes. Then it
    puts back edges that need not be removed. No single edge of the result could be put back; a smaller set may exist.
    """

    def __init__(self, subject: Subject, task: Task, whole: NDArray[Any]) -> None:
        self._subject, self._task, self._whole = subject, task, whole

    def run(self, neighbors: Indices, without: NDArray[Any]) -> Counterfactual | None:
        """`neighbors`: the other ends of all edges of the node; `without`: the logits without each of these edges."""
        if not len(neighbors):
            return None
        order = np.argsort(margins(self._task, without, self._whole), kind="stable")
        best = int(order[0])
        if self._changes(without[best : best + 1])[0]:
            return Counterfactual(neighbors[best : best + 1], without[best])
        sets = [np.sort(neighbors[order[:count]]) for count in range(2, min(len(neighbors), MAX_REMOVED) + 1)]
        if not sets:
            return None
        logits = self._answers(neighbors, sets)
        changed = np.flatnonzero(self._changes(logits))
        return self._shrunk(neighbors, sets[changed[0]], logits[changed[0]]) if len(changed) else None

    def _shrunk(self, neighbors: Indices, removed: Indices, logits: NDArray[Any]) -> Counterfactual:
        while len(removed) > 2:  # no single edge is enough
            sets = [np.delete(removed, position) for position in range(len(removed))]
            answers = self._answers(neighbors, sets)
            smallest = int(np.argmin(margins(self._task, answers, self._whole)))
            if not self._changes(answers[smallest : smallest + 1])[0]:
                break
            removed, logits = sets[smallest], answers[smallest]
        return Counterfactual(removed, logits)

    def _answers(self, neighbors: Indices, removed: Sequence[Indices]) -> NDArray[Any]:
        return self._subject.logits([np.setdiff1d(neighbors, rows, assume_unique=True) for rows in removed])

    def _changes(self, logits: NDArray[Any]) -> NDArray[np.bool_]:
        changed = decisions(self._task, logits) != decisions(self._task, self._whole[None])
        return np.asarray(changed.any(axis=1))


def _ranked(task: Task, whole: NDArray[Any], without: NDArray[Any], items: Indices, top: int) -> Effects:
    """The strongest effects. In multi-class models the strength is the change of the margin of the predicted class."""
    effects = whole - without
    if task == "multiclass":
        strengths = np.abs(margins(task, whole[None], whole) - margins(task, without, whole))
    else:
        strengths = np.abs(effects).max(axis=1, initial=0)
    order = np.argsort(-strengths, kind="stable")[:top]
    return Effects(items[order], effects[order], without[order])


def _fidelity(subject: Subject, task: Task, whole: NDArray[Any], reported: Indices) -> tuple[float, float]:
    others = np.setdiff1d(subject.neighbors, reported, assume_unique=True)
    logits = subject.logits([others, np.sort(reported)], repeated(subject.features, 2))
    differs = decisions(task, logits) != decisions(task, whole[None])
    plus, minus = differs.mean(axis=1).tolist()
    return plus, minus
