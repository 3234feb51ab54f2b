"""Half-precision states, which take half the space on disk and in memory. Their error is measured, for the manifest."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.errors import StoreError
from model_store.format import npy
from model_store.format.layout import ArraySpec, state_file, state_names, states_from
from model_store.publish.probe_writer import dense
from sgformer import Graph, InferenceModel, ModelConfig, NeighborhoodTooLarge, NewNodes, NodeStates, Summary, extend

MEASURED_ROWS, MEASURED_NEW_NODES = 4096, 64
NEIGHBORS = 3
MAX_RECOMPUTE = 200_000
"""The default of SGF_MAX_RECOMPUTE: the service refuses exact answers that read more adjacency entries."""
CHUNK_ROWS = 65_536


def check_finite(config: ModelConfig, states: NodeStates) -> None:
    """Raises StoreError if the model overflows on a node, so that publishing fails, not the first request for that node."""
    for name, array in _states_by_name(config, states).items():
        for start in range(0, len(array), CHUNK_ROWS):
            wrong = ~np.isfinite(array[start : start + CHUNK_ROWS]).all(axis=1)
            if wrong.any():
                row = start + int(wrong.argmax())
                raise StoreError(f"{name} of node {row} is NaN or infinite: the model overflows there")


def write_rounded_states(
    folder: Path, config: ModelConfig, states: NodeStates, specs: Mapping[str, ArraySpec]
) -> NodeStates:
    """Rounds the states to the types of `specs`, writes them to their files, and returns them."""
    rounded = {}
    for name, source in _states_by_name(config, states).items():
        spec = specs[state_file(name)]
        target = rounded[name] = npy.create(folder / state_file(name), spec)
        for start in range(0, len(source), CHUNK_ROWS):
            rows = source[start : start + CHUNK_ROWS]
            if not (np.abs(rows) <= np.finfo(spec.dtype).max).all():
                raise StoreError(f"{name} has numbers that half precision cannot hold; publish with float32 states")
            target[start : start + CHUNK_ROWS] = rows
    return states_from(config, rounded)


def rounding_error(
    config: ModelConfig, weights: Mapping[str, NDArray[Any]], graph: Graph, summary: Summary, stored: NodeStates
) -> dict[str, float]:
    """The largest difference between answers from the stored states and from the exact ones; 0 if nothing was rounded.

    The sample is spread evenly over the graph: known nodes, and new nodes that are copies of known nodes.
    """
    errors = {"embeddings": 0.0, "logits": 0.0}
    if stored is summary.states:
        return errors
    model = InferenceModel(config, weights)
    nodes, copied = (_evenly_spread(graph.num_nodes, limit) for limit in (MEASURED_ROWS, MEASURED_NEW_NODES))
    pairs = [tuple(model.known(states, summary.sums, nodes) for states in (summary.states, stored))]
    for node in copied:
        features = dense(graph.features[node : node + 1])
        neighbors = graph.adjacency.neighbors(np.array([node]))[:NEIGHBORS].tolist()
        new = NewNodes.build(features, [neighbors], num_nodes=graph.num_nodes, num_features=graph.num_features)
        with suppress(NeighborhoodTooLarge):  # the service refuses such a question too
            pairs.append(
                tuple(
                    extend(model, states, summary.sums, graph.adjacency, new, max_recompute=MAX_RECOMPUTE)
                    for states in (summary.states, stored)
                )
            )
    for part in errors:
        differences = (np.abs(getattr(exact, part) - getattr(rounded, part)).max() for exact, rounded in pairs)
        errors[part] = float(max(differences))
    return errors


def _evenly_spread(num_nodes: int, limit: int) -> NDArray[np.int64]:
    count = min(num_nodes, limit)
    return np.arange(count) * num_nodes // count


def _states_by_name(config: ModelConfig, states: NodeStates) -> dict[str, NDArray[Any]]:
    """The inverse of `states_from`."""
    layers = {f"layer_{number}": array for number, array in enumerate(states.layers)}
    aggregates = {f"aggregate_{number}": array for number, array in enumerate(states.aggregates, start=1)}
    arrays = {"inputs": states.inputs, **layers, **aggregates}
    return {name: arrays[name] for name in state_names(config)}
