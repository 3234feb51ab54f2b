"""The reference of drift: the training graph as histograms, with which requests and the live graph are compared.

It is computed from a sample of the rows of a snapshot, the same sample in every process, so that all workers have equal bins
and their counts add up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store import Snapshot
from sgformer import probabilities
from sgformer.arrays.operations import Indices
from sgformer.config import ModelConfig
from sgformer.features import FeatureRows, MixedRows, SparseRows
from sgformer.histograms import Counts, Histograms

SAMPLE_ROWS = 4096
"""Size of the samples of the training graph and of the live graph. The PSI of two such samples varies by 0.003."""
MAX_FEATURES = 512
"""Of a wider model, only the features that are most often not zero are compared."""
MIN_HELD_OUT = 200
"""With fewer held-out nodes in the sample, all nodes are the reference."""
NO_FEATURES = "the snapshot has no raw features (published with --no-raw-data, imported, or by an earlier release)"
NO_CONFIDENCE = "a regression model has no confidence"


class Reference:
    def __init__(self, snapshot: Snapshot) -> None:
        """Reads the files of the snapshot: not for the event loop."""
        self.config = snapshot.manifest.config
        rows = sample(np.arange(snapshot.states.num_nodes))
        features, logits = snapshot.raw_features(rows), snapshot.known_logits(rows)
        self.columns = np.arange(0) if features is None else _watched(features)
        self.reasons = {} if features is not None else {"features": NO_FEATURES}
        """Why a kind is not available, by kind."""
        values = self._values(features, snapshot.adjacency.degrees(rows), logits)
        self.histograms = {kind: Histograms.of_deciles(array) for kind, array in values.items()}
        if self.config.task != "regression":
            classes = self.config.out_features if self.config.task == "multiclass" else 2
            bins = Histograms.of_classes(classes).edges
            self.histograms["predictions"] = Histograms(np.repeat(bins, values["predictions"].shape[1], axis=0))
        else:
            self.reasons["confidence"] = NO_CONFIDENCE
        self.graph = self._counts(values)
        """The counts of all sampled nodes: the reference of the live graph."""
        held_out = _held_out(snapshot.split, rows)
        held_out_values = {kind: array[held_out] for kind, array in values.items() if kind in ("predictions", "confidence")}
        self.requests = self.graph | self._counts(held_out_values)
        """The reference of requests. Its predictions and confidences are of held-out nodes: a model is more confident about
        training nodes."""

    @property
    def size(self) -> int:
        """The number of counts of all kinds."""
        return sum(histograms.edges.size + len(histograms.edges) for histograms in self.histograms.values())

    def count(self, features: Any, degrees: Indices, logits: NDArray[Any]) -> Counts:
        """The counts of some nodes: all kinds in one array (`size`,). The counts of features are 0 if `features` is None."""
        counts = self._counts(self._values(features, degrees, logits))
        zeros = {kind: np.zeros(histograms.shape, dtype=np.int64) for kind, histograms in self.histograms.items()}
        return np.concatenate([counts.get(kind, empty).ravel() for kind, empty in zeros.items()])

    def split(self, counts: Counts) -> dict[str, Counts]:
        """The counts of every kind (columns, bins). The inverse of `count`."""
        parts: dict[str, Counts] = {}
        for kind, histograms in self.histograms.items():
            columns, bins = histograms.shape
            parts[kind], counts = counts[: columns * bins].reshape(columns, bins), counts[columns * bins :]
        return parts

    def _counts(self, values: dict[str, NDArray[Any]]) -> dict[str, Counts]:
        return {kind: self.histograms[kind].count(array) for kind, array in values.items()}

    def _values(self, features: Any, degrees: Indices, logits: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """The values of every kind (rows, columns) that are counted."""
        values = {"degrees": degrees[:, None], "predictions": _predictions(logits, self.config)}
        if features is not None and len(self.columns):
            values["features"] = dense_columns(features, self.columns)
        if self.config.task != "regression":
            values["confidence"] = _confidence(logits, self.config)
        return values


def sample(rows: Indices) -> Indices:
    """At most SAMPLE_ROWS of the rows, chosen at random with a fixed seed."""
    if len(rows) <= SAMPLE_ROWS:
        return rows
    return rows[np.sort(np.random.default_rng(0).choice(len(rows), SAMPLE_ROWS, replace=False, shuffle=False))]


def dense_columns(features: FeatureRows | MixedRows, columns: Indices) -> NDArray[Any]:
    """Some columns (ascending) of feature rows of any form, as a dense array."""
    if isinstance(features, MixedRows):
        dense = np.empty((features.shape[0], len(columns)))
        dense[~features.is_sparse] = features.dense[:, columns]
        dense[features.is_sparse] = dense_columns(features.sparse, columns)
        return dense
    if not isinstance(features, SparseRows):
        return features[:, columns]
    dense = np.zeros((features.shape[0], len(columns)))
    positions = np.minimum(np.searchsorted(columns, features.indices), len(columns) - 1)
    is_wanted = columns[positions] == features.indices
    dense[features.row_numbers()[is_wanted], positions[is_wanted]] = features.values[is_wanted]
    return dense


def _watched(features: FeatureRows) -> Indices:
    """The columns that are compared, ascending."""
    width = features.shape[1]
    if width <= MAX_FEATURES:
        return np.arange(width)
    if isinstance(features, SparseRows):
        used = np.bincount(features.indices, minlength=width)
    else:
        used = np.count_nonzero(features, axis=0)
    return np.sort(np.argsort(-used, kind="stable")[:MAX_FEATURES])


def _held_out(split: NDArray[np.int8] | None, rows: Indices) -> NDArray[np.bool_]:
    """Which rows are held out (not trained on); all of them if that is not known, or if they are too few."""
    held_out = np.ones(len(rows), dtype=bool) if split is None else split[rows] > 0
    return held_out if held_out.sum() >= MIN_HELD_OUT else np.ones(len(rows), dtype=bool)


def _predictions(logits: NDArray[Any], config: ModelConfig) -> NDArray[Any]:
    """The class; for every label whether it applies; or the values."""
    if config.task == "multiclass":
        return np.asarray(logits.argmax(axis=1)[:, None])
    return logits > 0 if config.task == "multilabel" else logits


def _confidence(logits: NDArray[Any], config: ModelConfig) -> NDArray[Any]:
    """The probability of the predicted class; in multi-label models the mean over the labels."""
    shares = probabilities(logits, config.task)
    if config.task == "multiclass":
        return np.asarray(shares.max(axis=1, keepdims=True))
    return np.asarray(np.maximum(shares, 1 - shares).mean(axis=1, keepdims=True))
