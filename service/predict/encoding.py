"""From outcomes to the bytes of an answer, column by column.

orjson writes a whole column at once, which costs a fraction of writing it value by value; its values are then filled into a
template, row by row.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from service.http.errors import Refusal
from service.predict.questions import Question
from service.predict.results import Outcome
from service.rollout.served_model import LoadedModel

FORMAT = 2
"""Changes with the bytes of answers, so that cached answers of another release are not served."""
Ids = Sequence[int | str]
Columns = dict[bytes, Iterable[Any]]
"""By the template of its field, a column: one value of JSON, or number, per node."""
Part = tuple[Ids, Outcome]
"""Nodes, by the names that the request has for them."""


def predictions_json(loaded: LoadedModel, question: Question, parts: Sequence[Part]) -> bytes:
    return _document(loaded, [_predictions(loaded, question, *part) for part in parts])


def embeddings_json(loaded: LoadedModel, parts: Sequence[Part]) -> bytes:
    return _document(loaded, [_embeddings(*part) for part in parts])


def embeddings_npy(parts: Sequence[Part]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.concatenate([outcome.embeddings for _, outcome in parts]).astype("<f4", copy=False))
    return buffer.getvalue()


def check_finite(parts: Sequence[Part]) -> None:
    for ids, outcome in parts:
        row = outcome.row_that_is_not_finite()
        if row is not None:
            raise Refusal("no_answer", f"the model has no finite answer for node {ids[row]!r}", node=ids[row])


def _document(loaded: LoadedModel, objects: Sequence[bytes]) -> bytes:
    return b"".join((loaded.head_json[:-1], b',"predictions":[', b",".join(objects), b"]}"))


def _objects(columns: Columns, constant: bytes = b"") -> bytes:
    """`{"a":1,"b":2},{"a":3,"b":4}` from the columns `"a":%b` and `"b":%b`, and what is the same in every row."""
    template = b"{%b%b}" % (b",".join(columns), constant)
    values = [list(column) for column in columns.values()]
    count, width = len(values[0]), len(values)
    filling: list[Any] = [None] * (count * width)
    for place, column in enumerate(values):
        filling[place::width] = column
    # Filled in at once: row by row it costs half as much again.
    return b",".join([template] * count) % tuple(filling)


def _predictions(loaded: LoadedModel, question: Question, ids: Ids, outcome: Outcome) -> bytes:
    columns = _nodes(ids) | _OF_TASK[loaded.config.task](loaded, question, outcome)
    if question.embeddings:
        columns[b'"embedding":[%b]'] = _rows(outcome.embeddings)
    return _objects(columns, _exactness(outcome))


def _embeddings(ids: Ids, outcome: Outcome) -> bytes:
    return _objects(_nodes(ids) | {b'"embedding":[%b]': _rows(outcome.embeddings)}, _exactness(outcome))


def _multiclass(loaded: LoadedModel, question: Question, outcome: Outcome) -> Columns:
    labels = loaded.label_fields
    return {b"%b": map(labels.__getitem__, outcome.best)} | _shares(labels, question, outcome)


def _shares(labels: Sequence[bytes], question: Question, outcome: Outcome) -> Columns:
    columns: Columns = {}
    if outcome.shares is not None and question.probabilities:
        columns[b'"probabilities":[%b]'] = _rows(outcome.shares)
    if outcome.shares is not None and question.top_k is not None:
        columns[b'"top_k":[%b]'] = [_top(labels, row, question.top_k) for row in outcome.shares]
    return columns


def _top(labels: Sequence[bytes], shares: NDArray[np.float32], count: int) -> bytes:
    likeliest = np.argsort(-shares, kind="stable")[:count]
    return _objects({b"%b": [labels[k] for k in likeliest], b'"probability":%b': _numbers(shares[likeliest])})


def _multilabel(loaded: LoadedModel, question: Question, outcome: Outcome) -> Columns:
    labels = [np.flatnonzero(row > 0).tolist() for row in outcome.logits]
    columns: Columns = {b'"labels":%b': map(orjson.dumps, labels)}
    if (names := loaded.classes) is not None:
        columns[b'"classes":%b'] = [orjson.dumps([names[k] for k in one]) for one in labels]
    return columns | _shares(loaded.label_fields, question, outcome)


def _regression(_loaded: LoadedModel, _question: Question, outcome: Outcome) -> Columns:
    if outcome.logits.shape[1] == 1:
        return {b'"value":%b': _numbers(outcome.logits[:, 0])}
    return {b'"value":[%b]': _rows(outcome.logits)}


_OF_TASK = {"multiclass": _multiclass, "multilabel": _multilabel, "regression": _regression}


def _exactness(outcome: Outcome) -> bytes:
    return b',"exactness":"%b"' % outcome.exactness.encode()


def _nodes(ids: Ids) -> Columns:
    return {b'"node":%d': ids} if set(map(type, ids)) == {int} else {b'"node":%b': map(orjson.dumps, ids)}


def _numbers(numbers: Sequence[Any] | NDArray[Any]) -> list[bytes]:
    return _text(numbers)[1:-1].split(b",")


def _rows(array: NDArray[np.float32]) -> list[bytes]:
    """Of each row, what stands between its brackets."""
    return _text(array)[2:-2].split(b"],[")


def _text(values: Any) -> bytes:
    array = np.ascontiguousarray(values) if isinstance(values, np.ndarray) else values
    return orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)
