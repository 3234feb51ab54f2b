"""What /predict is measured against, each a server of its own.

floor       an empty FastAPI endpoint that validates the same body with the same pydantic model, and answers nothing
plain       an ordinary FastAPI route around the same mathematics, as one would write it

python -m benchmarks.http_floors floor|plain PORT STORE
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import uvicorn
from fastapi import FastAPI

from model_store import Store
from service.questions import Question
from sgformer import NewNodes, probabilities


def floor(_store: str) -> FastAPI:
    app = FastAPI()

    @app.post("/predict")
    async def predict(question: Question) -> dict[str, Any]:  # noqa: ARG001  # validated, and that is all
        return {}

    return app


def plain(store: str) -> FastAPI:
    app, (name,) = FastAPI(), Store(store).models()
    snapshot = Store(store).model(name).open()

    @app.post("/predict")
    async def predict(question: Question) -> dict[str, Any]:
        found = []
        if question.nodes:
            answers = snapshot.known(np.array(question.nodes))
            found += _told(question.nodes, probabilities(answers.logits, "multiclass"))
        if question.new_nodes:
            new = NewNodes.build(
                np.array([node.features for node in question.new_nodes]),
                [node.neighbors for node in question.new_nodes],  # type: ignore[misc]  # row numbers here, never texts
                num_nodes=snapshot.manifest.sizes.nodes,
                num_features=snapshot.manifest.config.in_features,
            )
            answers = snapshot.extended(new)
            found += _told([node.id for node in question.new_nodes], probabilities(answers.logits, "multiclass"))
        return {"predictions": found}

    return app


def _told(ids: Any, shares: Any) -> list[dict[str, Any]]:
    return [
        {"node": node, "label": int(row.argmax()), "probabilities": row.tolist()}
        for node, row in zip(ids, shares, strict=True)
    ]


if __name__ == "__main__":
    application = {"floor": floor, "plain": plain}[sys.argv[1]](sys.argv[3])
    uvicorn.run(application, port=int(sys.argv[2]), log_level="warning", access_log=False)
