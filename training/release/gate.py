"""Is the challenger better than the champion? Both answer for the same held-out nodes of the same graph.

The champion is the live version: its weights, run over the challenger's data, so that data which has grown is no excuse for
either. The difference of the two scores is paired: its standard error is that of the difference, by a delete-a-group
jackknife over the nodes, which holds for every metric that we have. Better means: by more than MARGIN standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store import ModelVersions
from model_store.format.manifest import Manifest
from sgformer import Answers, InferenceModel, ModelConfig, summarize
from sgformer.config import Task
from training.data.labelled import TEST, LabelledGraph
from training.fit import tasks

MARGIN = 2.0
"""Standard errors of the paired difference: of models that are no better, about one in forty passes."""
MOST_LUCK = 0.023
"""The same, counted exactly, where nodes are right or wrong."""
RANKINGS = ("roc_auc",)
"""Metrics that can rise without a single node changing its class: of these, wins and losses say nothing."""
EXACTLY_COUNTED = 1000
LEAST_NODES = 20
"""On fewer, luck looks like a difference."""
GROUPS = 100
COMPARED_NODES = 20_000
"""Of how many nodes, spread over the graph, flips and drift are told."""


@dataclass(frozen=True)
class Comparison:
    """Two models on the same nodes. `difference` is positive where the challenger is better, also for `mae`."""

    metric: str
    nodes: int
    champion: float
    challenger: float
    difference: float
    standard_error: float
    wins: int | None
    """Nodes that only the challenger gets right, and `losses` those that only the champion does; multi-class only."""
    losses: int | None

    @property
    def better(self) -> bool:
        return self.difference > MARGIN * self.standard_error and self.luck < MOST_LUCK

    @property
    def luck(self) -> float:
        """How often a fair coin, thrown for every node on which the two differ, would be as kind to the challenger.

        Where they rarely differ, a standard error is too sure of itself: four wins and no loss are one in sixteen. Where
        they often do, it is a good judge, and nothing is counted (0).
        """
        if self.wins is None or self.losses is None or self.metric in RANKINGS:
            return 0.0
        thrown = self.wins + self.losses
        if thrown > EXACTLY_COUNTED:
            return 0.0
        as_kind = sum(math.comb(thrown, wins) for wins in range(self.wins, thrown + 1))
        return as_kind / float(2**thrown)

    def __str__(self) -> str:
        counts = (
            "" if self.wins is None else f"; {self.wins} nodes are right by the new one only, {self.losses} by the live one"
        )
        luck = f"; {self.luck:.3f} by luck alone, asked for less than {MOST_LUCK}" if self.luck else ""
        return (
            f"{self.metric} {self.challenger:.4f} against {self.champion:.4f} on {self.nodes:,} held-out nodes: "
            f"{self.difference:+.4f}, asked for more than {MARGIN * self.standard_error:.4f} "
            f"({MARGIN:g} standard errors){counts}{luck}"
        )


@dataclass(frozen=True)
class Verdict:
    better: bool
    reason: str
    """One sentence, with the numbers."""
    champion_version: int | None = None
    comparison: Comparison | None = None
    fair: bool | None = None
    fairness: str | None = None
    label_flips: float | None = None
    """The share of nodes whose answer changes. None for regression."""
    embedding_cosine: float | None = None
    """Mean cosine of a node's embeddings before and after; None where their sizes differ."""
    compared_nodes: int = 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Contestant:
    config: ModelConfig
    weights: Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Champion(Contestant):
    version: int
    manifest: Manifest

    @classmethod
    def live(cls, versions: ModelVersions) -> Champion | None:
        """None where no version is live."""
        if versions.live() is None:
            return None
        with versions.open() as snapshot:
            manifest = snapshot.manifest
            return cls(manifest.config, dict(snapshot.weights), int(snapshot.folder.name), manifest)


def judge(challenger: Contestant, champion: Champion | None, data: LabelledGraph) -> Verdict:
    if champion is None:
        return Verdict(True, "no version was live: there is nothing to be worse than")
    version = champion.version
    if (reason := incomparable(challenger, champion, data)) is not None:
        return Verdict(False, f"it cannot be compared with version {version}: {reason}", version)
    held_out = data.nodes(TEST)
    if len(held_out) < LEAST_NODES:
        told = f"the data has {len(held_out)} test nodes to compare on, expected at least {LEAST_NODES}"
        return Verdict(False, told, version)
    shown = _spread(data.graph.num_nodes)
    old, new = (_answers(one, data, held_out, shown) for one in (champion, challenger))
    labels = data.labels[held_out]
    old_logits, new_logits = _widened(old[0].logits, data.num_outputs), np.asarray(new[0].logits)
    comparison = compare(data.metric, old_logits, new_logits, labels, data.task)
    fair, fairness = _fairness(champion.manifest, data)
    told = "better" if comparison.better else "not better"
    return Verdict(
        comparison.better,
        f"{told} than version {version}: {comparison}",
        version,
        comparison,
        fair,
        fairness,
        _flips(np.asarray(old[1].logits), np.asarray(new[1].logits), data.task),
        _cosine(np.asarray(old[1].embeddings), np.asarray(new[1].embeddings)),
        len(shown),
    )


def compare(metric: str, champion: NDArray[Any], challenger: NDArray[Any], labels: NDArray[Any], task: Task) -> Comparison:
    """Both models' logits of the same nodes, with the nodes' labels."""
    sign = -1.0 if metric == "mae" else 1.0

    def difference(rows: Any) -> float:
        new, old = (tasks.score(metric, logits[rows], labels[rows], task) for logits in (challenger, champion))
        return sign * (new - old)

    count = len(labels)
    groups = np.random.default_rng(0).permutation(count) % min(GROUPS, count)
    left_out = np.array([difference(groups != group) for group in range(min(GROUPS, count))])
    error = np.sqrt((len(left_out) - 1) * np.mean((left_out - left_out.mean()) ** 2))
    wins = losses = None
    if task == "multiclass":
        right, before = challenger.argmax(axis=1) == labels, champion.argmax(axis=1) == labels
        wins, losses = int((right & ~before).sum()), int((before & ~right).sum())
    old, new = (tasks.score(metric, logits, labels, task) for logits in (champion, challenger))
    return Comparison(metric, count, old, new, sign * (new - old), float(error), wins, losses)


def incomparable(challenger: Contestant, champion: Champion, data: LabelledGraph) -> str | None:
    """Why the two cannot answer the same questions; None where they can."""
    old, new, manifest = champion.config, challenger.config, champion.manifest
    if old.task != new.task:
        return f"it was trained for {old.task}, the data is {new.task}"
    if old.in_features != new.in_features:
        return f"it reads {old.in_features} features, the data has {new.in_features}"
    if old.task == "regression" and old.out_features != new.out_features:
        return f"it predicts {old.out_features} values, the data has {new.out_features}"
    if old.out_features > new.out_features:
        return f"it knows {old.out_features} classes, the data has {new.out_features}"
    features = manifest.dataset.get("features")
    if features and data.feature_names and list(features) != list(data.feature_names):
        return "it reads other features"
    if manifest.classes and data.class_names and manifest.classes != data.class_names[: len(manifest.classes)]:
        return "its classes are others, or in another order"
    return None


def _fairness(manifest: Manifest, data: LabelledGraph) -> tuple[bool | None, str]:
    """Whether the champion, too, has not seen the held-out nodes in training."""
    if manifest.training.get("warm_start"):
        told = "the live version began from another one's weights, and what those were trained on is not known here"
        return None, told
    if manifest.dataset.get("sha256") == data.sha256():
        return True, "both were trained on the same data with the same split"
    if data.drawn is not None and manifest.training.get("split") == data.drawn:
        return True, "the data has changed, and a node that kept its id (or row) kept its part"
    return False, (
        "the live version was trained on other data or another split, and may have trained on some of these nodes, "
        "which would favour it: a new version that wins is better, one that loses need not be worse"
    )


def _answers(one: Contestant, data: LabelledGraph, *nodes: NDArray[np.int64]) -> list[Answers]:
    summary = summarize(one.config, one.weights, data.graph)
    model = InferenceModel(one.config, one.weights)
    return [model.known(summary.states, summary.sums, part) for part in nodes]


def _widened(logits: Any, width: int) -> NDArray[Any]:
    """A class that the champion has never heard of is one that it never answers."""
    array = np.asarray(logits)
    missing = width - array.shape[1]
    return np.pad(array, ((0, 0), (0, missing)), constant_values=np.finfo(array.dtype).min / 4) if missing else array


def _spread(count: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, count - 1, min(count, COMPARED_NODES)).astype(np.int64))


def _flips(old: NDArray[Any], new: NDArray[Any], task: Task) -> float | None:
    if task == "regression":
        return None
    if task == "multiclass":
        return float((old.argmax(axis=1) != new.argmax(axis=1)).mean())
    width = min(old.shape[1], new.shape[1])
    return float(((old[:, :width] > 0) != (new[:, :width] > 0)).any(axis=1).mean())


def _cosine(old: NDArray[Any], new: NDArray[Any]) -> float | None:
    if old.shape != new.shape:
        return None
    lengths = np.linalg.norm(old, axis=1) * np.linalg.norm(new, axis=1)
    return float(np.mean((old * new).sum(axis=1)[lengths > 0] / lengths[lengths > 0])) if (lengths > 0).any() else None
