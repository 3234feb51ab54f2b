"""The OpenAPI document: FastAPI's, with examples that fit the served version."""

from __future__ import annotations

import logging
from contextlib import suppress
from itertools import count
from typing import Any

import orjson
from fastapi import FastAPI

from service.engines.served_model import ServedModel
from service.errors import Refusal
from service.explain.explain_rows import describe
from service.explain.questions import ExplainQuestion
from service.http.data_routes import describe_classes, describe_features, describe_node
from service.predict import encoding
from service.predict.questions import Question
from service.predict.rows import KnownRows
from sgformer import SgformerError
from sgformer_client.answers import ErrorAnswer

LOG = logging.getLogger("service.http.openapi")
MANY = 32
"""An example lists all features, or all classes, if there are at most this many."""
MAX_EXAMPLE_BYTES = 4000
MAX_EXAMPLE_COST = 10_000
"""Most states that the example of an explanation reads: about 20 ms on the event loop, once per change of the graph."""
SAMPLES = {"number": 0.0, "boolean": True, "date": "2024-01-31"}


class Document:
    """`private`: answers need a key, but the document is public, so it shows no ids of the graph."""

    def __init__(self, app: FastAPI, private: bool) -> None:
        self._app, self._private = app, private
        self._state: object = ""  # the version and change that the examples fit; "" before there are examples

    def of(self, model: ServedModel | None) -> dict[str, Any]:
        """The document for the served version, or for none."""
        document = FastAPI.openapi(self._app)  # makes it once
        state = None if model is None else (model.id, model.sequence)
        if self._state != state:
            self._state = state
            document["components"]["schemas"]["ErrorAnswer"] = ErrorAnswer.model_json_schema()
            example = None if self._private or model is None or not model.first_ids(1) else model
            _set_examples(document["paths"]["/predict"]["post"], example, "predictions")
            _set_examples(document["paths"]["/embed"]["post"], example, "embeddings")
            _set_data_examples(document["paths"], example)
            _set_explain_examples(document["paths"]["/explain"]["post"], example)
            _set_similar_examples(document["paths"]["/similar"]["post"], example)
            change = document["paths"]["/graph"]["post"]["requestBody"]["content"]["application/json"]
            change["examples"] = _changes(example)
        return document


def _set_examples(operation: dict[str, Any], model: ServedModel | None, form: encoding.Form) -> None:
    questions = _questions(model)
    operation["requestBody"]["content"]["application/json"]["examples"] = questions
    answer = operation["responses"]["200"]["content"]["application/json"]
    answer.pop("examples", None)
    if model is not None:
        try:
            value = _answer(model, Question(**questions["known"]["value"]), form)
            answer["examples"] = {"known": {"summary": "to the first example", "value": value}}
        except Exception:  # the document is complete without an example
            LOG.exception("the OpenAPI document has no example of an answer")


def _set_explain_examples(operation: dict[str, Any], model: ServedModel | None) -> None:
    first = [0] if model is None else model.first_ids(2)
    questions: dict[str, Any] = {"known": {"summary": "a node of the graph", "value": {"node": first[0], "top": 3}}}
    answer = operation["responses"]["200"]["content"]["application/json"]
    answer.pop("examples", None)
    if model is not None:
        new = {"id": "a", "features": _features(model), "neighbors": first}
        questions["new"] = {"summary": "a new node", "value": {"new_node": new, "top": 3}}
        with suppress(Refusal, SgformerError):  # e.g. the node is a hub; the document is complete without an example
            fields = describe(model, ExplainQuestion(**questions["known"]["value"]), MAX_EXAMPLE_COST)
            content = orjson.dumps(model.origin_at(model.sequence) | fields, option=orjson.OPT_SERIALIZE_NUMPY)
            if len(content) <= MAX_EXAMPLE_BYTES:
                answer["examples"] = {"known": {"summary": "to the first example", "value": orjson.loads(content)}}
    operation["requestBody"]["content"]["application/json"]["examples"] = questions


def _set_similar_examples(operation: dict[str, Any], model: ServedModel | None) -> None:
    first = [0] if model is None else model.first_ids(2)
    questions: dict[str, Any] = {"known": {"summary": "a node of the graph", "value": {"nodes": first[:1], "k": 3}}}
    if model is not None:
        new = {"id": "a", "features": _features(model), "neighbors": first}
        questions["new"] = {"summary": "a new node", "value": {"new_nodes": [new], "k": 3}}
    operation["requestBody"]["content"]["application/json"]["examples"] = questions


def _set_data_examples(paths: dict[str, Any], model: ServedModel | None) -> None:
    answers: dict[str, Any] = dict.fromkeys(("/nodes/{node_id}", "/classes", "/features"))
    if model is not None:
        (first,) = model.first_ids(1)
        for path in ("/nodes/{node_id}", "/graph/nodes/{node_id}"):
            paths[path]["get"]["parameters"][0]["example"] = str(first)
        descriptions = describe_node(model, first, 3), describe_classes(model), describe_features(model)
        answers = dict(zip(answers, descriptions, strict=True))
    for path, answer in answers.items():
        content = paths[path]["get"]["responses"]["200"]["content"]["application/json"]
        content.pop("example", None)
        if answer is not None and len(answer.model_dump_json()) <= MAX_EXAMPLE_BYTES:
            content["example"] = answer.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _questions(model: ServedModel | None) -> dict[str, Any]:
    if model is None:
        return {"known": {"value": {"nodes": [0]}}}
    first = model.first_ids(2)
    new = {"id": "a", "features": _features(model), "neighbors": first}
    top_1 = {} if model.config.task == "regression" else {"top_k": 1}
    top_3 = {"probabilities": False, "top_k": 3} if top_1 and model.config.out_features > MANY else {}
    named = {}
    if model.schema is not None and len(model.schema.columns) <= MANY:
        by_name = {column.name: (*column.categories, SAMPLES.get(column.kind))[0] for column in model.schema.columns}
        value = {"new_nodes": [new | {"features": by_name}], **top_1}
        named = {"named": {"summary": "a new node, with features by name", "value": value}}
    joint = {"new_nodes": [new, new | {"id": "b", "neighbors": []}], "edges": [["a", "b"]], "joint": True}
    frozen = {"new_nodes": [new], "mode": "frozen"}
    return {
        "known": {"summary": "nodes of the graph", "value": {"nodes": first, **top_3}},
        "new": {"summary": "a new node", "value": {"new_nodes": [new], **top_1}},
        **named,
        "joint": {"summary": "two new nodes with an edge between them", "value": joint | top_1},
        "frozen": {"summary": "a new node, without recomputing its neighbours", "value": frozen | top_1},
    }


def _features(model: ServedModel) -> Any:
    width = model.config.in_features
    return [0.0] * width if width <= MANY else {"indices": [0], "values": [1.0]}


def _changes(model: ServedModel | None) -> dict[str, Any]:
    """Examples of changes. New nodes get an id that the graph does not have."""
    if model is None:
        return {"edge": {"value": {"operations": [{"op": "add_edge", "source": 0, "target": 1}]}}}
    numbers = map(str, count()) if model.snapshot.has_text_ids else count(model.num_rows)
    new = next(node for node in numbers if model.live.row(node) is None)
    first = model.first_ids(2)
    add_node = {"op": "add_node", "id": new, "features": _features(model), "neighbors": first}
    set_features = {"op": "set_features", "id": new, "features": _features(model)}
    remove_edge = {"op": "remove_edge", "source": new, "target": first[0]}
    return {
        "node": {"summary": "a new node with edges", "value": {"operations": [add_node]}},
        "several": {
            "summary": "several operations, in order",
            "value": {"operations": [add_node, set_features, remove_edge]},
        },
        "upsert": {
            "summary": "a node that may exist, and one that may not",
            "value": {"operations": [add_node, {"op": "remove_node", "id": new}], "upsert": True},
        },
    }


def _answer(model: ServedModel, question: Question, form: encoding.Form) -> Any:
    """Raises what computing an answer raises."""
    (results,) = KnownRows.compute(model, [KnownRows.of(model, question.nodes, form == "embeddings")])
    parts = [encoding.Part(question.nodes, results, {})]
    return orjson.loads(encoding.encode(model, question, parts, form, model.origin_at(results.sequence)))
