"""Minimal servers that /predict is compared with.

floor       an empty FastAPI endpoint that validates the body with the same pydantic model and answers {}
plain       an ordinary FastAPI route around the same mathematics

python -m benchmarks.http_floors floor|plain PORT STORE
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from fastapi import FastAPI

from benchmarks.peers.model import Model
from service.predict.questions import Question


def floor(_store: str) -> FastAPI:
    app = FastAPI()

    @app.post("/predict")
    async def predict(question: Question) -> dict[str, Any]:  # noqa: ARG001  # FastAPI validates it
        return {}

    return app


def plain(store: str) -> FastAPI:
    app, model = FastAPI(), Model(store)

    @app.post("/predict")
    async def predict(question: Question) -> dict[str, Any]:
        new_nodes = [(node.id, node.features, node.neighbors) for node in question.new_nodes]
        return model.answers(question.nodes, new_nodes)  # type: ignore[arg-type]  # these graphs have no string ids

    return app


if __name__ == "__main__":
    application = {"floor": floor, "plain": plain}[sys.argv[1]](sys.argv[3])
    uvicorn.run(application, port=int(sys.argv[2]), log_level="warning", access_log=False)
