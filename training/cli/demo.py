"""The demo's check: one digit that is not in the graph, answered as a new node and by a full-graph forward."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sgformer import ExtendedAnswers, NewNodes, SGFormer, extend, summarize
from sgformer.full_graph.evaluation import full_logits
from sgformer.request_time.outputs import probabilities
from training.data.datasets.digits import Drawing, with_drawing


@dataclass(frozen=True)
class Proof:
    drawing: Drawing
    label: int
    probability: float
    exactness: str
    recomputed: int
    seconds: float
    full_forward_seconds: float
    largest_difference: float
    """Between the logits of the new node and those of the full-graph forward with the digit added."""

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "drawing"} | {"truth": self.drawing.label}

    def __str__(self) -> str:
        count = len(self.drawing.neighbors)
        return f"""A digit that is not in the graph, with {count} similar digits as its neighbours:

{self.drawing}

Predicted: {self.label} ({self.probability:.1%}), true: {self.drawing.label}. {self.exactness}: \
{self.largest_difference:.0e} from the full-graph forward with the digit added,
in {self.seconds * 1e3:.2f} ms instead of {self.full_forward_seconds * 1e3:.0f} ms."""


def prove(model: SGFormer, seed: int) -> Proof:
    """For a model that was trained on the digits with this seed, which determines the digit that is left out."""
    data, drawing = with_drawing(seed)
    graph, weights = data.graph, model.weights()
    summary = summarize(model.config, weights, graph)
    served = model.inference()
    new = NewNodes.build(
        drawing.pixels[None], [list(drawing.neighbors)], num_nodes=graph.num_nodes, num_features=graph.num_features
    )

    def answer() -> ExtendedAnswers:
        return extend(served, summary.states, summary.sums, graph.adjacency, new)

    answer()  # warm-up
    start = time.perf_counter()
    answers = answer()
    seconds = time.perf_counter() - start
    links = np.stack([np.full(len(drawing.neighbors), graph.num_nodes), drawing.neighbors])
    augmented = graph.with_nodes(drawing.pixels[None], links)
    start = time.perf_counter()
    expected = full_logits(model.config, weights, augmented)[-1]
    full_seconds = time.perf_counter() - start
    logits = answers.logits[0]
    label = int(logits.argmax())
    return Proof(
        drawing,
        label,
        float(probabilities(answers.logits, model.config.task)[0, label]),
        answers.exactness,
        int(answers.recomputed[0]),
        seconds,
        full_seconds,
        float(np.abs(logits - expected).max()),
    )
