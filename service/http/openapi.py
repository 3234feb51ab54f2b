"""The OpenAPI document: FastAPI's, with /predict and /embed, which are not FastAPI routes, and with all errors."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from service.engines.served_model import ServedModel
from service.http.errors import STATUS
from service.http.examples import Form, answer_to_first, questions
from service.predict.questions import Question
from sgformer_client.answers import ErrorAnswer, PredictAnswer

LOG = logging.getLogger("service.http.openapi")
TAGS = {
    "answers": "Predictions and embeddings.",
    "models": "The versions of the model.",
    "admin": "Retraining and roll-back, with the admin token.",
    "operations": "Health checks and metrics.",
}
"""Groups of routes, in the order of the page."""
_STATUSES = {
    "answers": (400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503),
    "models": (401, 403, 404, 409, 422, 500, 503),
    "admin": (400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 500, 503),
    "operations": (500, 503),
}
"""The error statuses of each group."""
_ONLY = {
    "unknown_node": {"answers"},
    "batch_too_large": {"answers"},
    "neighborhood_too_large": {"answers"},
    "no_answer": {"answers"},
    "deadline": {"answers"},
    "unknown_report": {"models"},
    "unknown_version": {"models", "admin"},
    "unknown_job": {"admin"},
    "jobs_unavailable": {"admin"},
    "not_found": {"models", "admin"},
}
"""Error codes that only some groups have; all others apply to every group."""


class Documents:
    """Keeps the document of the version in service."""

    def __init__(self, app: FastAPI, private: bool) -> None:
        self._app, self._private = app, private
        self._cached: tuple[str | None, dict[str, Any]] | None = None

    def of(self, model: ServedModel | None) -> dict[str, Any]:
        identity = None if model is None else model.id
        if self._cached is None or self._cached[0] != identity:
            self._cached = identity, document(self._app, None if self._private else model)
        return self._cached[1]


def document(app: FastAPI, model: ServedModel | None) -> dict[str, Any]:
    """The document, with examples that the version in service answers."""
    whole = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    _, definitions = models_json_schema(
        [(Question, "validation"), (PredictAnswer, "serialization"), (ErrorAnswer, "serialization")],
        ref_template="#/components/schemas/{model}",
    )
    schemas = whole.setdefault("components", {}).setdefault("schemas", {})
    schemas |= definitions.get("$defs", {})
    whole["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    about = "Predictions for nodes of the graph and for new nodes."
    whole["paths"]["/predict"] = {"post": _operation("predict", about, model, _json_answer(model, "predictions"))}
    content = _json_answer(model, "embeddings")
    content["application/x-npy"] = {"schema": {"type": "string", "format": "binary"}}
    whole["paths"]["/embed"] = {"post": _operation("embed", "Embeddings of the same nodes.", model, content)}
    whole["tags"] = [{"name": name, "description": about} for name, about in TAGS.items()]
    for name, path in whole["paths"].items():
        for operation in path.values():
            if name.startswith("/admin"):
                operation["security"] = [{"key": []}]
            operation["responses"].pop("422", None)  # FastAPI's shape of errors, not ours
            operation["responses"] = _errors(operation["tags"][0]) | operation["responses"]
    return whole


def _operation(name: str, about: str, model: ServedModel | None, content: dict[str, Any]) -> dict[str, Any]:
    body = {"application/json": {"schema": {"$ref": "#/components/schemas/Question"}, "examples": questions(model)}}
    return {
        "operationId": name,
        "summary": about,
        "tags": ["answers"],
        "security": [{}, {"key": []}],
        "requestBody": {"required": True, "content": body},
        "responses": {"200": {"description": "The answers.", "content": content}},
    }


def _json_answer(model: ServedModel | None, form: Form) -> dict[str, Any]:
    schema: dict[str, Any] = {"schema": {"$ref": "#/components/schemas/PredictAnswer"}}
    if model is not None:
        try:
            schema["examples"] = {"known": {"summary": "to the first example", "value": answer_to_first(model, form)}}
        except Exception:  # the document is complete without an example
            LOG.exception("the OpenAPI document has no example of an answer")
    return {"application/json": schema}


def _errors(tag: str) -> dict[str, Any]:
    possible = sorted(code for code in STATUS if tag in _ONLY.get(code, (tag,)))
    codes = {status: [code for code in possible if STATUS[code] == status] for status in _STATUSES[tag]}
    return {
        str(status): {"description": ", ".join(names), "content": {"application/json": _error(names)}}
        for status, names in codes.items()
    }


def _error(codes: list[str]) -> dict[str, Any]:
    sentence = "what was wrong, and what was expected"
    shown = {code: {"value": {"error": sentence, "code": code, "details": {}}} for code in codes}
    return {"schema": {"$ref": "#/components/schemas/ErrorAnswer"}, "examples": shown}
