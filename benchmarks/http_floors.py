"""What /predict is measured against, each a server of its own.

floor       an empty FastAPI endpoint that validates the same body with the same pydantic model, and answers nothing
plain       an ordinary FastAPI route around the same mathematics, as one would write it

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
    async def predict(question: Question) -> dict[str, Any]:  # noqa: ARG001  # validated, and that is all
        return {}

    return app


def plain(store: str) -> FastAPI:
    app, model = FastAPI(), Model(store)

    @app.post("/predict")
    async def predict(question: Question) -> dict[str, Any]:
        new_nodes = [(node.id, node.features, node.neighbors) for node in question.new_nodes]
        return model.answers(question.nodes, new_nodes)  # type: ignore[arg-type]  # row numbers here, never texts

    return app


if __name__ == "__main__":
    application = {"floor": floor, "plain": plain}[sys.argv[1]](sys.argv[3])
    uvicorn.run(application, port=int(sys.argv[2]), log_level="warning", access_log=False)
