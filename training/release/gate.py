"""The gate: is a new version better than the live one, on the same held-out nodes of the same graph?

The live version's weights answer over the new data, so that both versions see the same graph. The standard error of the
paired difference of the two scores comes from a delete-a-group jackknife over the nodes, which works for every metric here.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store import Snapshot
from model_store.format.manifest import Manifest
from model_store.live_graph.live_graph import graph_of
from sgformer import Answers, summarize
from sgformer.config import Task
from training.data.labelled import TEST, LabelledGraph
from training.fit import tasks

MARGIN = 2.0
"""In standard errors of the paired difference: about one in forty models that are no better passes."""
MAX_P_VALUE = 0.023
"""The largest p-value of the sign test: the same chance of one in forty."""
RANKING_METRICS = ("roc_auc",)
"""Metrics that can rise although no node changes its class: the sign test says nothing about them."""
MAX_SIGN_TEST_NODES = 1000
MIN_TEST_NODES = 20
JACKKNIFE_GROUPS = 100
DRIFT_NODES = 20_000
"""The size of the sample of all nodes on which changed labels and embeddings are counted."""


@dataclass(frozen=True)
class Comparison:
    """The scores of two versions on the same nodes. `difference` is positive if the new one is better, also for `mae`."""

    metric: str
    nodes: int
    live_score: float
    new_score: float
    difference: float
    standard_error: float
    wins: int | None
    """Nodes that only the new version gets right; `losses`: nodes that only the live version gets right. Multi-class."""
    losses: int | None

    @property
    def better(self) -> bool:
        return self.difference > MARGIN * self.standard_error and self.p_value < MAX_P_VALUE

    @property
    def p_value(self) -> float:
        """Of a one-sided sign test on the nodes that only one version gets right; 0 if the test is not applied.

        If the versions differ on few nodes, the standard error is too small: four wins and no loss have a p-value of 1/16.
        If they differ on many, the standard error is enough.
        """
        if self.wins is None or self.losses is None or self.metric in RANKING_METRICS:
            return 0.0
        differing = self.wins + self.losses
        if differing > MAX_SIGN_TEST_NODES:
            return 0.0
        return sum(math.comb(differing, wins) for wins in range(self.wins, differing + 1)) / float(2**differing)

    def __str__(self) -> str:
        counts = f"; only the new version is right on {self.wins} nodes, only the live one on {self.losses}"
        counts = "" if self.wins is None else counts
        sign_test = f"; p-value {self.p_value:.3f}, needs less than {MAX_P_VALUE}" if self.p_value else ""
        return (
            f"{self.metric} {self.new_score:.4f} against {self.live_score:.4f} on {self.nodes:,} held-out nodes: "
            f"{self.difference:+.4f}, needs more than {MARGIN * self.standard_error:.4f} "
            f"({MARGIN:g} standard errors){counts}{sign_test}"
        )


@dataclass(frozen=True)
class Verdict:
    better: bool
    reason: str
    """One sentence, with the numbers."""
    live_version: int | None = None
    comparison: Comparison | None = None
    fair: bool | None = None
    """False if the live version may have trained on the held-out nodes; None if that is not known."""
    fairness: str | None = None
    label_flips: float | None = None
    """The share of nodes whose label changes. None for regression."""
    embedding_cosine: float | None = None
    """Mean cosine between a node's embeddings by the two versions; None if their sizes differ."""
    compared_nodes: int = 0


def judge(new: Snapshot, live: Snapshot | None, data: LabelledGraph, device: str = "cpu") -> Verdict:
    """Compares a version that was published over `data` with the live version. `device`: for a full-graph forward."""
    if live is None:
        return Verdict(True, "no version was live: there is nothing to compare with")
    version = int(live.folder.name)
    if (reason := why_incomparable(new.manifest, live.manifest, data)) is not None:
        return Verdict(False, f"it cannot be compared with version {version}: {reason}", version)
    test_nodes = data.nodes(TEST)
    if len(test_nodes) < MIN_TEST_NODES:
        reason = f"the data has {len(test_nodes)} test nodes to compare on, expected at least {MIN_TEST_NODES}"
        return Verdict(False, reason, version)
    num_nodes = data.graph.num_nodes
    sample = np.unique(np.linspace(0, num_nodes - 1, min(num_nodes, DRIFT_NODES)).astype(np.int64))
    (live_test, live_sample), (new_test, new_sample) = (
        _answers(snapshot, data, device, test_nodes, sample) for snapshot in (live, new)
    )
    live_logits = _add_missing_classes(live_test.logits, data.num_outputs)
    comparison = compare(data.metric, live_logits, new_test.logits, data.labels[test_nodes], data.task)
    fair, fairness = _fairness(live.manifest, data)
    return Verdict(
        comparison.better,
        f"{'better' if comparison.better else 'not better'} than version {version}: {comparison}",
        version,
        comparison,
        fair,
        fairness,
        _label_flips(live_sample.logits, new_sample.logits, data.task),
        _mean_cosine(live_sample.embeddings, new_sample.embeddings),
        len(sample),
    )


def compare(metric: str, live: NDArray[Any], new: NDArray[Any], labels: NDArray[Any], task: Task) -> Comparison:
    """Compares the logits of two versions for the same nodes."""
    sign = -1.0 if metric == "mae" else 1.0

    def scores(rows: Any) -> tuple[float, float]:
        live_score, new_score = (tasks.score(metric, logits[rows], labels[rows], task) for logits in (live, new))
        return live_score, new_score

    count = len(labels)
    num_groups = min(JACKKNIFE_GROUPS, count)
    groups = np.random.default_rng(0).permutation(count) % num_groups
    left_out = np.array([sign * np.subtract(*scores(groups != group)[::-1]) for group in range(num_groups)])
    error = np.sqrt((num_groups - 1) * np.mean((left_out - left_out.mean()) ** 2))
    wins = losses = None
    if task == "multiclass":
        live_right, new_right = (logits.argmax(axis=1) == labels for logits in (live, new))
        wins, losses = int((new_right & ~live_right).sum()), int((live_right & ~new_right).sum())
    live_score, new_score = scores(slice(None))
    return Comparison(metric, count, live_score, new_score, sign * (new_score - live_score), float(error), wins, losses)


def why_incomparable(new: Manifest, live: Manifest, data: LabelledGraph) -> str | None:
    """Returns why the two versions cannot answer the same questions; None if they can."""
    if live.config.task != new.config.task:
        return f"it was trained for {live.config.task}, the data is {new.config.task}"
    if live.config.in_features != new.config.in_features:
        return f"it reads {live.config.in_features} features, the data has {new.config.in_features}"
    outputs, expected = live.config.out_features, new.config.out_features
    if live.config.task == "regression" and outputs != expected:
        return f"it predicts {outputs} values, the data has {expected}"
    if outputs > expected:
        return f"it has {outputs} classes, the data has {expected}"
    features = live.dataset.get("features")
    if features and data.feature_names and list(features) != list(data.feature_names):
        return "it reads other features"
    if live.classes and data.class_names and live.classes != data.class_names[: len(live.classes)]:
        return "its classes differ, or are in another order"
    return None


def _fairness(live: Manifest, data: LabelledGraph) -> tuple[bool | None, str]:
    """Whether the held-out nodes were held out from the training of the live version, too."""
    if live.training.get("warm_start"):
        return None, "the live version started from another version's weights, whose training nodes are not known here"
    if live.dataset.get("sha256") == data.sha256():
        return True, "both were trained on the same data with the same split"
    if data.live is not None and graph_of(live)[0] == data.live["graph"]:
        return True, "both were trained on the same live graph, in which a node keeps its part"
    if data.drawn is not None and live.training.get("split") == data.drawn:
        return True, "the data has changed, and a node that kept its id (or row) kept its part"
    return False, (
        "the live version was trained on other data or another split, and may have trained on some of these nodes, "
        "which would favour it: a new version that wins is better, one that loses need not be worse"
    )


def _answers(snapshot: Snapshot, data: LabelledGraph, device: str, *samples: NDArray[np.int64]) -> list[Answers]:
    """The answers of a version for nodes of the data: stored ones if it was published over this data, else computed ones."""
    if snapshot.manifest.dataset.get("sha256") == data.sha256():
        return [snapshot.known(nodes) for nodes in samples]

    def allocate(_name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """A mapped file without a name, in the store, where publishing has needed as much space: bounds the memory."""
        with TemporaryFile(dir=snapshot.folder.parent) as file:
            os.posix_fallocate(file.fileno(), 0, math.prod(shape) * dtype.itemsize)
            return np.memmap(file, dtype, "r+", shape=shape)

    summary = summarize(snapshot.manifest.config, snapshot.weights, data.graph, device=device, allocate=allocate)
    return [snapshot.model.known(summary.states, summary.sums, nodes) for nodes in samples]


def _add_missing_classes(logits: NDArray[Any], width: int) -> NDArray[Any]:
    """Adds columns for classes that the live version does not know, with logits so low that it never answers them."""
    missing = width - logits.shape[1]
    return np.pad(logits, ((0, 0), (0, missing)), constant_values=np.finfo(logits.dtype).min / 4) if missing else logits


def _label_flips(live: NDArray[Any], new: NDArray[Any], task: Task) -> float | None:
    if task == "regression":
        return None
    if task == "multiclass":
        return float((live.argmax(axis=1) != new.argmax(axis=1)).mean())
    width = min(live.shape[1], new.shape[1])
    return float(((live[:, :width] > 0) != (new[:, :width] > 0)).any(axis=1).mean())


def _mean_cosine(live: NDArray[Any], new: NDArray[Any]) -> float | None:
    if live.shape != new.shape:
        return None
    lengths = np.linalg.norm(live, axis=1) * np.linalg.norm(new, axis=1)
    products = (live * new).sum(axis=1)[lengths > 0] / lengths[lengths > 0]
    return float(products.mean()) if len(products) else None
