"""The map of all nodes: their embeddings projected to two dimensions when the snapshot was published."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from service.engines.served_model import ServedModel
from service.explain.explain_rows import AnswerFields
from service.explain.similar_nodes import stored_embeddings
from service.predict.rows import SingleRows

DIGITS = 4
"""Digits of a coordinate, relative to the extent of the map: more than a screen can show."""


@dataclass(frozen=True, eq=False)
class MapRows(SingleRows):
    """The nodes of the map. The compute process also encodes the answer: 100,000 nodes are a few megabytes of JSON."""

    limit: int

    def __len__(self) -> int:
        return 0  # the metric of batch sizes counts nodes of questions, and this question names none

    @staticmethod
    def compute(model: ServedModel, batch: Sequence[MapRows]) -> list[AnswerFields]:
        (rows,) = batch
        start = time.perf_counter()
        content = orjson.dumps(draw_map(model, rows.limit), option=orjson.OPT_SERIALIZE_NUMPY)
        return [AnswerFields({"content": content}, model.sequence, time.perf_counter() - start)]


def draw_map(model: ServedModel, limit: int) -> dict[str, Any]:
    """Returns all fields of the answer. Of a snapshot with more than `limit` nodes, it has evenly spaced ones.

    Raises Refusal (no_embeddings).
    """
    count = len(stored_embeddings(model))
    shown = min(count, limit)
    rows = np.arange(shown, dtype=np.int64) * count // shown
    assert model.snapshot.map is not None  # noqa: S101  # a snapshot with embeddings has a map
    facts = (model.snapshot.manifest.embeddings or {})["map"]
    x, y = (_rounded(column) for column in np.asarray(model.snapshot.map[rows]).T)
    return {
        **model.origin,
        "method": facts["method"],
        "explained": facts["explained"],
        "nodes": count,
        "shown": shown,
        "mean": facts["mean"],
        "components": facts["components"],
        "task": model.config.task,
        "classes": [] if model.config.task == "regression" else list(model.class_names),
        "ids": model.snapshot.ids(rows.tolist()),
        "x": x,
        "y": y,
        "labels": _labels(model, rows),
        "predictions": _predictions(model, rows),
    }


def _rounded(column: NDArray[Any]) -> NDArray[np.float64]:
    """Rounds in float64: in float32 the JSON of small and of large coordinates would have more digits."""
    extent = float(np.abs(column).max(initial=0))
    return column.astype(np.float64).round(DIGITS - math.ceil(math.log10(extent)) if extent > 0 else 0)


def _labels(model: ServedModel, rows: NDArray[np.int64]) -> list[int | float | None]:
    """The class, or the first value of a regression; None if it is not known, and in multi-label models."""
    labels = model.snapshot.labels
    if labels is None or model.config.task == "multilabel":
        return [None] * len(rows)
    values = np.asarray(labels[rows]).reshape(len(rows), -1)[:, 0]
    known = values >= 0 if model.config.task == "multiclass" else np.isfinite(values)
    return [value if is_known else None for value, is_known in zip(values.tolist(), known, strict=True)]


def _predictions(model: ServedModel, rows: NDArray[np.int64]) -> NDArray[Any]:
    """The class, the likeliest of several labels, or the first value of a regression."""
    logits = model.snapshot.known_logits(rows)
    return logits[:, 0] if model.config.task == "regression" else logits.argmax(axis=1)
