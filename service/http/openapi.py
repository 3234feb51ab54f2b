"""The OpenAPI document: FastAPI's, with examples that the version in service answers."""

from __future__ import annotations

import logging
from typing import Any

import orjson
from fastapi import FastAPI

from service.engines.served_model import ServedModel
from service.predict import encoding
from service.predict.questions import Question
from service.predict.results import NodeResults
from sgformer_client.answers import ErrorAnswer

LOG = logging.getLogger("service.http.openapi")
MANY = 32
"""Features or classes up to which an example lists them all."""


class Document:
    """`private`: answers need a key, so the document, which needs none, shows no ids of the graph."""

    def __init__(self, app: FastAPI, private: bool) -> None:
        self._app, self._private = app, private
        self._snapshot: str | None = ""  # whose examples the document has; at first it has none

    def of(self, model: ServedModel | None) -> dict[str, Any]:
        """The document for the version in service, or for no version."""
        document = FastAPI.openapi(self._app)  # makes it once
        snapshot = None if model is None else model.id
        if self._snapshot != snapshot:
            self._snapshot = snapshot
            document["components"]["schemas"]["ErrorAnswer"] = ErrorAnswer.model_json_schema()
            shown = None if self._private else model
            _set_examples(document["paths"]["/predict"]["post"], shown, "predictions")
            _set_examples(document["paths"]["/embed"]["post"], shown, "embeddings")
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


def _questions(model: ServedModel | None) -> dict[str, Any]:
    if model is None:
        return {"known": {"value": {"nodes": [0]}}}
    ids = model.snapshot.node_ids
    first = list(range(min(2, model.num_nodes))) if ids is None else ids.names(range(min(2, model.num_nodes)))
    width = model.config.in_features
    features: Any = [0.0] * width if width <= MANY else {"indices": [0], "values": [1.0]}
    new = {"id": "a", "features": features, "neighbors": first}
    likely = {} if model.config.task == "regression" else {"top_k": 1}
    few = {"probabilities": False, "top_k": 3} if likely and model.config.out_features > MANY else {}
    joint = {"new_nodes": [new, new | {"id": "b", "neighbors": []}], "edges": [["a", "b"]], "joint": True}
    frozen = {"new_nodes": [new], "mode": "frozen"}
    return {
        "known": {"summary": "nodes of the graph", "value": {"nodes": first, **few}},
        "new": {"summary": "a new node", "value": {"new_nodes": [new], **likely}},
        "joint": {"summary": "two new nodes with a link between them", "value": joint | likely},
        "frozen": {"summary": "a new node, without recomputing its neighbours", "value": frozen | likely},
    }


def _answer(model: ServedModel, question: Question, form: encoding.Form) -> Any:
    """Raises what computing an answer raises."""
    embeddings = form == "embeddings"
    known = model.known(model.rows(question.nodes), embeddings)
    exactness = model.exactness("exact", embeddings)
    parts = [(question.nodes, NodeResults.of(known, model.config.task, 0.0, exactness))]
    encoding.check_finite(parts)
    return orjson.loads(encoding.encode(model, question, parts, form))
