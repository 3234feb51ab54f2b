"""The demo's check: a digit that is not in the graph, answered as a new node and by a full-graph forward."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from sgformer import NewNodes, SGFormer, extend, full_logits, probabilities, summarize
from training.data.datasets.digits import with_drawing


def check_new_node(model: SGFormer, seed: int) -> tuple[dict[str, Any], str]:
    """Returns the result as a dictionary and as text.

    The model was trained on the digits with this seed, which determines the digit that is left out.
    """
    data, drawing = with_drawing(seed)
    graph, weights, served = data.graph, model.weights(), model.inference()
    summary = summarize(model.config, weights, graph)
    pixels, neighbors = drawing.pixels[None], [list(drawing.neighbors)]
    new = NewNodes.build(pixels, neighbors, num_nodes=graph.num_nodes, num_features=graph.num_features)
    for _ in range(2):  # the first call is the warm-up
        start = time.perf_counter()
        answers = extend(served, summary.states, summary.sums, graph.adjacency, new)
        seconds = time.perf_counter() - start
    edges = np.stack([np.full(len(drawing.neighbors), graph.num_nodes), drawing.neighbors])
    grown = graph.with_nodes(pixels, edges)
    start = time.perf_counter()
    expected = full_logits(model.config, weights, grown)[-1]
    full_seconds = time.perf_counter() - start
    label = int(answers.logits[0].argmax())
    probability = float(probabilities(answers.logits, model.config.task)[0, label])
    difference = float(np.abs(answers.logits[0] - expected).max())
    result = {
        "label": label,
        "truth": drawing.label,
        "probability": probability,
        "exactness": answers.exactness,
        "recomputed": int(answers.recomputed[0]),
        "seconds": seconds,
        "full_forward_seconds": full_seconds,
        "largest_difference": difference,
    }
    text = f"""A digit that is not in the graph, with {len(drawing.neighbors)} similar digits as its neighbours:

{drawing}

Predicted: {label} ({probability:.1%}), true: {drawing.label}. {answers.exactness}: {difference:.0e} from the full-graph
forward with the digit added, in {seconds * 1e3:.2f} ms instead of {full_seconds * 1e3:.0f} ms."""
    return result, text
