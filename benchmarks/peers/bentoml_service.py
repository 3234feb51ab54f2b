"""A BentoML service.

Its method is asynchronous and returns a pydantic model, because this gave the most answers per second: more than a method in
a thread, and more than a dictionary.
"""

from __future__ import annotations

import os

import bentoml
from pydantic import BaseModel

from benchmarks.peers.model import Model


class NewNode(BaseModel):
    id: int | str
    features: list[float]
    neighbors: list[int]


class Prediction(BaseModel):
    node: int | str
    label: int
    probabilities: list[float]


class Answer(BaseModel):
    predictions: list[Prediction]


@bentoml.service(workers=1, logging={"access": {"enabled": False}}, metrics={"enabled": False})
class SGFormerService:
    def __init__(self) -> None:
        self._model = Model(os.environ["BENCHMARK_STORE"])

    @bentoml.api
    async def predict(self, nodes: list[int] = [], new_nodes: list[NewNode] = []) -> Answer:  # noqa: B006  # never modified
        answers = self._model.answers(nodes, [(node.id, node.features, node.neighbors) for node in new_nodes])
        return Answer.model_validate(answers)
