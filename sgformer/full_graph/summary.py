"""What the full-graph forward leaves behind: all that serving needs besides the weights and the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from sgformer.arrays.operations import Indices
from sgformer.arrays.torch_operations import placed_on
from sgformer.config import ModelConfig
from sgformer.full_graph.passes import CHUNK_ROWS, Passes, stored_in
from sgformer.graph import Graph
from sgformer.request_time.inference import Answers, InferenceModel
from sgformer.states import NodeStates
from sgformer.sums import AttentionSums

Allocate: TypeAlias = Callable[[str, tuple[int, int], np.dtype[Any]], NDArray[Any]]
"""Makes a writable array for a named result, e.g. a memory-mapped file."""


@dataclass(frozen=True)
class Summary:
    states: NodeStates
    sums: AttentionSums


def in_memory(_name: str, shape: tuple[int, int], dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.empty(shape, dtype=dtype)


def summarize(
    config: ModelConfig,
    weights: Mapping[str, NDArray[Any]],
    graph: Graph,
    *,
    dtype: Any = np.float32,
    device: torch.device | str = "cpu",
    chunk_rows: int = CHUNK_ROWS,
    allocate: Allocate = in_memory,
) -> Summary:
    """The evaluation-mode forward of a model over a whole graph, in bounded memory beyond its results.

    Args:
        weights: as `SGFormer.weights()` gives them.
        allocate: called as (name, shape, dtype) for `inputs`, `layer_0` (unless the GCN reads Z0) .. `layer_L` and
            `aggregate_1` .. `aggregate_{L-1}`. Memory-mapped files make it run on graphs whose states exceed memory.
    """
    passes = Passes(config, graph, dtype, device, chunk_rows)
    model = InferenceModel(config, weights, dtype, placed_on(device))

    def array(name: str) -> NDArray[Any]:
        return allocate(name, (graph.num_nodes, config.hidden), model.dtype)

    with torch.inference_mode():
        inputs = array("inputs")
        initial = inputs if config.gnn_input == "shared" else array("layer_0")
        sums = passes.inputs(model, inputs, initial)
        layers, aggregates = [initial], []
        for number in range(1, config.layers + 1):
            layer = array(f"layer_{number}")
            aggregate = array(f"aggregate_{number}") if number < config.layers else None
            passes.layer(model, number, layers[-1], initial, stored_in(layer), aggregate)
            layers.append(layer)
            if aggregate is not None:
                aggregates.append(aggregate)
    return Summary(NodeStates(inputs, tuple(layers), tuple(aggregates)), sums)


def answers_of(config: ModelConfig, weights: Mapping[str, NDArray[Any]], summary: Summary, nodes: Indices) -> Answers:
    """The float32 answers of a full-graph forward for some nodes of its graph; the last step runs on torch in float64."""
    model = InferenceModel(config, weights, np.float64, placed_on("cpu"))
    answers = model.known(summary.states, summary.sums, nodes)
    return Answers(answers.embeddings.float().numpy(), answers.logits.float().numpy())
