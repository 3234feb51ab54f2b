"""Examples for the OpenAPI document: questions for the version in service, and its answer to the first one."""

from __future__ import annotations

from typing import Any, Literal

import orjson

from service.engines.served_model import ServedModel
from service.predict import encoding
from service.predict.questions import Question
from service.predict.results import NodeResults

Form = Literal["predictions", "embeddings"]
MANY = 32
"""Features or classes up to which an example lists them all."""


def questions(model: ServedModel | None) -> dict[str, Any]:
    if model is None:
        return {"known": {"value": {"nodes": [0]}}}
    ids = model.snapshot.node_ids
    first = list(range(min(2, model.num_nodes))) if ids is None else ids.names(range(min(2, model.num_nodes)))
    width = model.config.in_features
    features: Any = [0.0] * width if width <= MANY else {"indices": [0], "values": [1.0]}
    new = {"id": "a", "features": features, "neighbors": first}
    likely = {} if model.config.task == "regression" else {"top_k": 1}
    few = {"probabilities": False, "top_k": 3} if likely and model.config.out_features > MANY else {}
    pair = [new, new | {"id": "b", "neighbors": []}]
    return {
        "known": {"summary": "nodes of the graph", "value": {"nodes": first, **few}},
        "new": {"summary": "a new node", "value": {"new_nodes": [new], **likely}},
        "joint": {
            "summary": "two new nodes with a link between them",
            "value": {"new_nodes": pair, "edges": [["a", "b"]], "joint": True, **likely},
        },
        "frozen": {
            "summary": "a new node, without recomputing its neighbours",
            "value": {"new_nodes": [new], "mode": "frozen", **likely},
        },
    }


def answer_to_first(model: ServedModel, form: Form) -> Any:
    """Raises what computing an answer raises."""
    question = Question(**questions(model)["known"]["value"])
    embeddings = form == "embeddings"
    known = model.known(model.rows(question.nodes), embeddings)
    exactness = model.exactness("exact", embeddings)
    parts = [(question.nodes, NodeResults.of(known, model.config.task, 0.0, exactness))]
    encoding.check_finite(parts)
    if form == "embeddings":
        return orjson.loads(encoding.embeddings_json(model, parts))
    return orjson.loads(encoding.predictions_json(model, question, parts))
