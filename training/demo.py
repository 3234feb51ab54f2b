"""The demo's proof: one digit that the graph has never seen, answered from the sums and by a full recompute."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from sgformer import ExtendedAnswers, NewNodes, SGFormer, extend, summarize
from sgformer.evaluation import full_logits
from sgformer.outputs import probabilities
from training.digits import Drawing
from training.labelled import LabelledGraph


@dataclass(frozen=True)
class Proof:
    label: int
    probability: float
    exactness: str
    recomputed: int
    seconds: float
    full_forward_seconds: float
    largest_difference: float
    """Between the logits from the sums and those of the full-graph forward with the digit added."""


def prove(model: SGFormer, data: LabelledGraph, drawing: Drawing) -> Proof:
    graph, weights = data.graph, model.weights()
    summary = summarize(model.config, weights, graph)
    served = model.inference()
    new = NewNodes.build(
        drawing.pixels[None], [list(drawing.neighbors)], num_nodes=graph.num_nodes, num_features=graph.num_features
    )

    def answer() -> ExtendedAnswers:
        return extend(served, summary.states, summary.sums, graph.adjacency, new)

    answer()  # the first call pays for loading code
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
        label,
        float(probabilities(logits, model.config.task)[label]),
        answers.exactness,
        int(answers.recomputed[0]),
        seconds,
        full_seconds,
        float(np.abs(logits - expected).max()),
    )
