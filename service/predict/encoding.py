"""Encodes results as the bytes of an answer.

orjson encodes a whole column at once, which costs a fraction of encoding it value by value. The values of all columns are
then filled into a template of a row.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple

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
"""Columns by the template of their field. A column has one value per node: encoded JSON, or an int for `%d`."""


class Part(NamedTuple):
    """The known or the new nodes of a question."""

    ids: Ids
    """The ids of all nodes, as in the request."""
    results: NodeResults | None
    """A row per node without an error; None if all have errors."""
    errors: Mapping[int, Refusal]
    """By position in `ids`, ascending."""


def encode(model: ServedModel, question: Question, parts: Sequence[Part], form: Form, origin: Mapping[str, Any]) -> bytes:
    """`origin`: the fields that name the version and the last change of the graph."""
    if form == "npy":
        buffer = io.BytesIO()
        embeddings = [part.results.embeddings for part in parts if part.results is not None]
        np.save(buffer, np.concatenate(embeddings).astype("<f4", copy=False))
        return buffer.getvalue()
    objects: list[bytes] = []
    for ids, results, errors in parts:
        failed = {position: _error(ids[position], refusal) for position, refusal in errors.items()} if errors else {}
        if results is None:
            objects += failed.values()
            continue
        columns = _nodes([node for position, node in enumerate(ids) if position not in errors] if errors else ids)
        if form == "predictions":
            columns |= _TASK_COLUMNS[model.config.task](model, question, results)
        if form == "embeddings" or question.embeddings:
            columns[b'"embedding":[%b]'] = _rows(results.embeddings)
        objects.append(_objects(columns, b',"exactness":"%b"' % results.exactness.encode(), failed))
    begin = orjson.dumps(origin)[:-1]
    return b"".join((begin, b',"predictions":[', b",".join(objects), b"]}"))


def _classes(model: ServedModel) -> list[bytes]:
    """The fields that name a class, for each class."""
    return [b'"label":%d,"class":%b' % (label, orjson.dumps(name)) for label, name in enumerate(model.class_names)]


def by_class_template(model: ServedModel) -> bytes:
    """`{"x":%b,"y":%b}` for the classes x and y. Raises Refusal if a model has no classes, or two of the same name."""
    if model.config.task == "regression":
        raise Refusal("invalid", "probabilities: by_class needs classes, and this model predicts values")
    if len(set(model.class_names)) < len(model.class_names):
        raise Refusal("invalid", "two classes have the same name, expected probabilities: true, a list in their order")
    return b"{%b}" % b",".join(orjson.dumps(name).replace(b"%", b"%%") + b":%b" for name in model.class_names)


def _error(node: int | str, refusal: Refusal) -> bytes:
    return orjson.dumps({"node": node, "error": str(refusal), "code": refusal.code})


def _objects(columns: Columns, constant: bytes = b"", others: Mapping[int, bytes] = {}) -> bytes:
    """`{"a":1,"b":2},{"a":3,"b":4}` from the columns `"a":%b` and `"b":%b`; `constant` ends every row.

    `others`: further objects by their positions in the result, ascending.
    """
    template = b"{%b%b}" % (b",".join(columns), constant)
    rows: list[tuple[Any, ...]] = list(zip(*columns.values(), strict=True))
    templates = [template] * len(rows)
    for position, content in others.items():
        rows.insert(position, (content,))
        templates.insert(position, b"%b")
    # One call of `%` for all rows: a call per row takes 1.5 times as long.
    return b",".join(templates) % tuple(chain.from_iterable(rows))


def _multiclass(model: ServedModel, question: Question, results: NodeResults) -> Columns:
    labels = model.derive(_classes)
    return {b"%b": map(labels.__getitem__, results.labels)} | _probabilities(model, question, results)


def _probabilities(model: ServedModel, question: Question, results: NodeResults) -> Columns:
    columns: Columns = {}
    if results.probabilities is not None and question.probabilities == "by_class":
        template = model.derive(by_class_template)
        columns[b'"probabilities":%b'] = [template % tuple(row.split(b",")) for row in _rows(results.probabilities)]
    elif results.probabilities is not None and question.probabilities:
        columns[b'"probabilities":[%b]'] = _rows(results.probabilities)
    if results.probabilities is not None and question.top_k is not None:
        labels = model.derive(_classes)
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
    return columns | _probabilities(model, question, results)


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
