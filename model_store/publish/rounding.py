"""States in half precision: half the disk and page cache, at an error that is measured and kept in the manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.errors import StoreError
from model_store.format import npy
from model_store.format.layout import ArraySpec, state_file, state_names, states_from
from model_store.publish.probe_writer import dense
from sgformer import (
    Answers,
    AttentionSums,
    Graph,
    InferenceModel,
    ModelConfig,
    NeighborhoodTooLarge,
    NewNodes,
    NodeStates,
    Summary,
    extend,
)

MEASURED_ROWS, MEASURED_NEW_NODES = 4096, 64
NEIGHBORS = 3
MAX_RECOMPUTE = 200_000
"""As the service's default: larger neighbourhoods get no exact answer there."""
CHUNK_ROWS = 65_536


def check_finite(config: ModelConfig, states: NodeStates) -> None:
    """A model can overflow on some row of its own graph: better known now than when somebody asks for that node."""
    for name, array in _named(config, states).items():
        for start in range(0, len(array), CHUNK_ROWS):
            bad = ~np.isfinite(array[start : start + CHUNK_ROWS]).all(axis=1)
            if bad.any():
                raise StoreError(f"{name} of node {start + int(bad.argmax())} is NaN or infinite: the model overflows there")


def rounded_states(folder: Path, config: ModelConfig, states: NodeStates, specs: Mapping[str, ArraySpec]) -> NodeStates:
    """The states, rounded to the type of `specs` and written to their files."""
    sources = _named(config, states)
    arrays = {name: _rounded(folder, name, source, specs[state_file(name)]) for name, source in sources.items()}
    return states_from(config, arrays)


def rounding_error(
    config: ModelConfig, weights: Mapping[str, NDArray[Any]], graph: Graph, summary: Summary, stored: NodeStates
) -> dict[str, float]:
    """Largest difference between answers from the stored states and from the full ones; zero where nothing was rounded.

    Measured on a sample that lies evenly in the graph: known nodes, and new nodes that are copies of known ones.
    """
    if stored is summary.states:
        return {"embeddings": 0.0, "logits": 0.0}
    model, new = InferenceModel(config, weights), _new_nodes(graph)
    exact, rounded = (_sample(model, states, summary.sums, graph, new) for states in (summary.states, stored))
    return {
        "embeddings": float(np.abs(exact.embeddings - rounded.embeddings).max()),
        "logits": float(np.abs(exact.logits - rounded.logits).max()),
    }


def _sample(
    model: InferenceModel, states: NodeStates, sums: AttentionSums, graph: Graph, new: Sequence[NewNodes]
) -> Answers:
    answers = [model.known(states, sums, _evenly(graph, MEASURED_ROWS))]
    for question in new:
        with suppress(NeighborhoodTooLarge):  # it depends on the graph alone, so it is left out of both samples
            answers.append(extend(model, states, sums, graph.adjacency, question, max_recompute=MAX_RECOMPUTE))
    embeddings, logits = (np.concatenate([getattr(one, part) for one in answers]) for part in ("embeddings", "logits"))
    return Answers(embeddings, logits)


def _new_nodes(graph: Graph) -> list[NewNodes]:
    questions = []
    for row in _evenly(graph, MEASURED_NEW_NODES):
        features = dense(graph.features[row : row + 1])
        neighbors = graph.adjacency.neighbors(np.array([row]))[:NEIGHBORS].tolist()
        questions.append(NewNodes.build(features, [neighbors], num_nodes=graph.num_nodes, num_features=features.shape[1]))
    return questions


def _evenly(graph: Graph, most: int) -> NDArray[np.int64]:
    count = min(graph.num_nodes, most)
    return np.arange(count) * graph.num_nodes // count


def _named(config: ModelConfig, states: NodeStates) -> dict[str, NDArray[Any]]:
    """The inverse of `states_from`."""
    layers = {f"layer_{number}": array for number, array in enumerate(states.layers)}
    aggregates = {f"aggregate_{number}": array for number, array in enumerate(states.aggregates, start=1)}
    arrays = {"inputs": states.inputs, **layers, **aggregates}
    return {name: arrays[name] for name in state_names(config)}


def _rounded(folder: Path, name: str, source: NDArray[Any], spec: ArraySpec) -> NDArray[Any]:
    target = npy.create(folder / state_file(name), spec)
    for start in range(0, len(source), CHUNK_ROWS):
        rows = source[start : start + CHUNK_ROWS]
        if not (np.abs(rows) <= np.finfo(spec.dtype).max).all():
            raise StoreError(f"{name} has numbers that half precision cannot hold; publish with float32 states")
        target[start : start + CHUNK_ROWS] = rows
    return target
