"""Encodes results as the bytes of an answer.

orjson encodes a whole column at once, which costs a fraction of encoding it value by value. The values of all columns are
then filled into a template of a row.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Literal

import numpy as np
import orjson
from numpy.typing import NDArray

from service.engines.served_model import ServedModel
from service.errors import Refusal
from service.predict.questions import Question
from service.predict.results import NodeResults

FORMAT = 2
"""Increased when the bytes of answers change, so that cached answers of another release are not served."""
Form = Literal["predictions", "embeddings", "npy"]
Ids = Sequence[int | str]
Columns = dict[bytes, Iterable[Any]]
"""Columns by the template of their field. A column has a JSON value, or a number, per node."""
Part = tuple[Ids, NodeResults]
"""Nodes, by the ids of the request, and their results."""


def encode(model: ServedModel, question: Question, parts: Sequence[Part], form: Form) -> bytes:
    if form == "npy":
        buffer = io.BytesIO()
        np.save(buffer, np.concatenate([results.embeddings for _, results in parts]).astype("<f4", copy=False))
        return buffer.getvalue()
    objects = []
    for ids, results in parts:
        columns = _nodes(ids)
        if form == "predictions":
            columns |= _TASK_COLUMNS[model.config.task](model, question, results)
        if form == "embeddings" or question.embeddings:
            columns[b'"embedding":[%b]'] = _rows(results.embeddings)
        objects.append(_objects(columns, b',"exactness":"%b"' % results.exactness.encode()))
    return b"".join((model.derive(_origin), b',"predictions":[', b",".join(objects), b"]}"))


def check_finite(parts: Sequence[Part]) -> None:
    """Raises Refusal (no_answer): JSON has no NaN and no infinity."""
    for ids, results in parts:
        row = results.first_row_not_finite()
        if row is not None:
            raise Refusal("no_answer", f"the model has no finite answer for node {ids[row]!r}", node=ids[row])


def _origin(model: ServedModel) -> bytes:
    """The beginning of an answer, without the closing brace."""
    return orjson.dumps(model.origin)[:-1]


def _classes(model: ServedModel) -> list[bytes]:
    """The fields that name a class, for each class."""
    names = model.classes or [str(number) for number in range(model.config.out_features)]
    return [b'"label":%d,"class":%b' % (label, orjson.dumps(name)) for label, name in enumerate(names)]


def _objects(columns: Columns, constant: bytes = b"") -> bytes:
    """`{"a":1,"b":2},{"a":3,"b":4}` from the columns `"a":%b` and `"b":%b`; `constant` ends every row."""
    template = b"{%b%b}" % (b",".join(columns), constant)
    rows = list(zip(*columns.values(), strict=True))
    # One call of `%`: a call per row costs half as much again.
    return b",".join([template] * len(rows)) % tuple(chain.from_iterable(rows))


def _multiclass(model: ServedModel, question: Question, results: NodeResults) -> Columns:
    labels = model.derive(_classes)
    return {b"%b": map(labels.__getitem__, results.labels)} | _probabilities(labels, question, results)


def _probabilities(labels: Sequence[bytes], question: Question, results: NodeResults) -> Columns:
    columns: Columns = {}
    if results.probabilities is not None and question.probabilities:
        columns[b'"probabilities":[%b]'] = _rows(results.probabilities)
    if results.probabilities is not None and question.top_k is not None:
        columns[b'"top_k":[%b]'] = [_top(labels, row, question.top_k) for row in results.probabilities]
    return columns


def _top(labels: Sequence[bytes], shares: NDArray[np.float32], count: int) -> bytes:
    top = np.argsort(-shares, kind="stable")[:count]
    return _objects({b"%b": [labels[label] for label in top], b'"probability":%b': _numbers(shares[top])})


def _multilabel(model: ServedModel, question: Question, results: NodeResults) -> Columns:
    labels = [np.flatnonzero(row > 0).tolist() for row in results.logits]
    columns: Columns = {b'"labels":%b': map(orjson.dumps, labels)}
    if (names := model.classes) is not None:
        columns[b'"classes":%b'] = [orjson.dumps([names[label] for label in row]) for row in labels]
    return columns | _probabilities(model.derive(_classes), question, results)


def _regression(_model: ServedModel, _question: Question, results: NodeResults) -> Columns:
    if results.logits.shape[1] == 1:
        return {b'"value":%b': _numbers(results.logits[:, 0])}
    return {b'"value":[%b]': _rows(results.logits)}


_TASK_COLUMNS = {"multiclass": _multiclass, "multilabel": _multilabel, "regression": _regression}


def _nodes(ids: Ids) -> Columns:
    return {b'"node":%d': ids} if set(map(type, ids)) == {int} else {b'"node":%b': map(orjson.dumps, ids)}


def _numbers(array: NDArray[np.float32]) -> list[bytes]:
    return _json(array)[1:-1].split(b",")


def _rows(array: NDArray[np.float32]) -> list[bytes]:
    """The JSON of each row, without its brackets."""
    return _json(array)[2:-2].split(b"],[")


def _json(array: NDArray[np.float32]) -> bytes:
    return orjson.dumps(np.ascontiguousarray(array), option=orjson.OPT_SERIALIZE_NUMPY)
