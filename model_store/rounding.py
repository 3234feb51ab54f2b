"""States in half precision: half the disk and page cache, at an error that is measured and written down."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store import npy
from model_store.errors import StoreError
from model_store.layout import ArraySpec, state_file, state_names, states_from
from sgformer import InferenceModel, ModelConfig, NodeStates, Summary

MEASURED_ROWS = 4096
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
    config: ModelConfig, weights: Mapping[str, NDArray[Any]], summary: Summary, stored: NodeStates
) -> dict[str, float]:
    """How far rounding moves the answers of a sample of known nodes, at most; zero where nothing was rounded."""
    if stored is summary.states:
        return {"embeddings": 0.0, "logits": 0.0}
    model = InferenceModel(config, weights)
    count = min(stored.num_nodes, MEASURED_ROWS)
    rows = np.arange(count) * stored.num_nodes // count
    exact, rounded = (model.known(states, summary.sums, rows) for states in (summary.states, stored))
    return {
        "embeddings": float(np.abs(exact.embeddings - rounded.embeddings).max()),
        "logits": float(np.abs(exact.logits - rounded.logits).max()),
    }


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
