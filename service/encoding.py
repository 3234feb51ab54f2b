"""From arrays to the bytes of an answer, in one pass."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from service.errors import Refusal
from service.loaded import LoadedModel
from service.questions import Question
from sgformer import probabilities

Ids = Sequence[int | str]
Told = list[dict[str, Any]]
Part = tuple[Ids, Any, str]
"""Ids, their answers, and whether those are exact or frozen."""


def predictions_json(loaded: LoadedModel, question: Question, parts: Sequence[Part]) -> bytes:
    found = [one for part in parts for one in _predictions(loaded, question, *part)]
    return orjson.dumps(loaded.head | {"predictions": found}, option=orjson.OPT_SERIALIZE_NUMPY)


def embeddings_json(loaded: LoadedModel, parts: Sequence[Part]) -> bytes:
    found = [
        {"node": node, "embedding": row, "exactness": exactness}
        for ids, answers, exactness in parts
        for node, row in zip(ids, _rows(answers.embeddings), strict=True)
    ]
    return orjson.dumps(loaded.head | {"predictions": found}, option=orjson.OPT_SERIALIZE_NUMPY)


def embeddings_npy(parts: Sequence[Part]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.concatenate([answers.embeddings for _, answers, _ in parts]).astype("<f4", copy=False))
    return buffer.getvalue()


def check_finite(parts: Sequence[Part]) -> None:
    """JSON has no NaN, and an answer that is none must not look like one."""
    for ids, answers, _ in parts:
        for array in (answers.logits, answers.embeddings):
            if not math.isfinite(np.add.reduce(array, axis=None, dtype=np.float64)):  # a sum passes NaN and infinity on
                row = int(np.flatnonzero(~np.isfinite(array).all(axis=1))[0])
                raise Refusal("no_answer", f"the model has no finite answer for node {ids[row]!r}", node=ids[row])


def _predictions(loaded: LoadedModel, question: Question, ids: Ids, answers: Any, exactness: str) -> Told:
    found = _OF_TASK[loaded.config.task](loaded, question, ids, answers.logits)
    if question.embeddings:
        for one, row in zip(found, _rows(answers.embeddings), strict=True):
            one["embedding"] = row
    for one in found:
        one["exactness"] = exactness
    return found


def _multiclass(loaded: LoadedModel, question: Question, ids: Ids, logits: NDArray[np.float32]) -> Told:
    labels: list[int] = logits.argmax(axis=1).tolist()
    names = _names(loaded, logits.shape[1])
    found: Told = [{"node": node, "label": k, "class": names[k]} for node, k in zip(ids, labels, strict=True)]
    if not question.probabilities and question.top_k is None:
        return found
    shares = _rows(probabilities(logits, "multiclass"))
    if question.probabilities:
        for one, row in zip(found, shares, strict=True):
            one["probabilities"] = row
    if question.top_k is not None:
        for one, row in zip(found, shares, strict=True):
            best = np.argsort(-row, kind="stable")[: question.top_k].tolist()
            one["top_k"] = [{"label": k, "class": names[k], "probability": row[k]} for k in best]
    return found


def _multilabel(loaded: LoadedModel, question: Question, ids: Ids, logits: NDArray[np.float32]) -> Told:
    found: Told = [{"node": node, "labels": np.flatnonzero(row > 0).tolist()} for node, row in zip(ids, logits, strict=True)]
    if loaded.classes is not None:
        for one in found:
            one["classes"] = [loaded.classes[k] for k in one["labels"]]
    if question.probabilities:
        for one, row in zip(found, _rows(probabilities(logits, "multilabel")), strict=True):
            one["probabilities"] = row
    return found


def _regression(_loaded: LoadedModel, _question: Question, ids: Ids, logits: NDArray[np.float32]) -> Told:
    values = logits[:, 0].tolist() if logits.shape[1] == 1 else _rows(logits)
    return [{"node": node, "value": value} for node, value in zip(ids, values, strict=True)]


_OF_TASK = {"multiclass": _multiclass, "multilabel": _multilabel, "regression": _regression}


def _names(loaded: LoadedModel, count: int) -> Sequence[str]:
    return loaded.classes if loaded.classes is not None else [str(number) for number in range(count)]


def _rows(array: NDArray[Any]) -> list[NDArray[Any]]:
    return list(np.ascontiguousarray(array))
