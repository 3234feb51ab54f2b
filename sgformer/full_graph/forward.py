"""The full-graph forward: the states and sums that serving needs, and the logits of all nodes.

`summarize` and `FullForward` run in evaluation mode. `summarize` holds one block of rows in memory besides its results,
`FullForward` up to four arrays of all nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sgformer.arrays.torch_operations import placed_on
from sgformer.config import ModelConfig
from sgformer.full_graph.passes import Passes, write_into
from sgformer.full_graph.shard import CHUNK_ROWS, Shard
from sgformer.full_graph.storage import Allocate, in_memory
from sgformer.graph import Graph
from sgformer.request_time.inference import InferenceModel
from sgformer.states import NodeStates
from sgformer.sums import AttentionSums


@dataclass(frozen=True)
class Summary:
    """What serving needs besides the weights and the graph."""

    states: NodeStates
    sums: AttentionSums


def summarize(
    config: ModelConfig,
    weights: Mapping[str, NDArray[Any]],
    graph: Graph,
    *,
    dtype: Any = np.float32,
    device: torch.device | str = "cpu",
    chunk_rows: int = CHUNK_ROWS,
    allocate: Allocate = in_memory,
    shard: Shard | None = None,
) -> Summary:
    """Runs a model over a whole graph and keeps the states of every layer.

    Args:
        weights: as `SGFormer.weights()` returns them.
        allocate: makes the arrays; called as (name, shape, dtype) for `inputs`, `layer_0` (unless the GCN reads Z0) ..
            `layer_L`, and `aggregate_1` .. `aggregate_{L-1}`. With memory-mapped files the states may exceed memory.
        shard: the rows of this process. Then the arrays have these rows only; the sums are over all rows.
    """
    passes = Passes(config, graph, dtype, device, chunk_rows, shard)
    count = shard.num_rows if shard else graph.num_nodes
    model = InferenceModel(config, weights, dtype, placed_on(device))

    def array(name: str) -> NDArray[Any]:
        return allocate(name, (count, config.hidden), model.dtype)

    with torch.inference_mode():
        inputs = array("inputs")
        initial = inputs if config.gnn_input == "shared" else array("layer_0")
        sums = passes.inputs(model, inputs, initial)
        layers, aggregates = [initial], []
        for number in range(1, config.layers + 1):
            layer = array(f"layer_{number}")
            aggregate = array(f"aggregate_{number}") if number < config.layers else None
            passes.layer(model, number, layers[-1], initial, write_into(layer), aggregate)
            layers.append(layer)
            if aggregate is not None:
                aggregates.append(aggregate)
    return Summary(NodeStates(inputs, tuple(layers), tuple(aggregates)), sums)


class FullForward:
    """Computes the logits of all nodes for changing weights, as in training. Keeps its working memory between calls."""

    def __init__(
        self,
        config: ModelConfig,
        graph: Graph,
        dtype: Any = np.float32,
        device: torch.device | str = "cpu",
        allocate: Allocate = in_memory,
        shard: Shard | None = None,
    ) -> None:
        """`allocate` and `shard` are as for `summarize`; `allocate` also makes the arrays of logits."""
        self._config, self._dtype, self._device, self._allocate = config, np.dtype(dtype), device, allocate
        self._passes = Passes(config, graph, dtype, device, shard=shard)
        shape = (shard.num_rows if shard else graph.num_nodes, config.hidden)
        self._inputs = allocate("inputs", shape, self._dtype)
        self._initial = self._inputs if config.gnn_input == "shared" else allocate("layer_0", shape, self._dtype)
        spare = min(config.layers - 1, 1 if self._passes.single_block else 2)
        self._layers = [allocate(f"layer_{number}", shape, self._dtype) for number in range(1, spare + 1)]

    def logits(self, weights: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """The logits of every node, or of every row of the shard, in a new array. `weights`: as for `summarize`."""
        config, passes, initial = self._config, self._passes, self._initial
        model = InferenceModel(config, weights, self._dtype, placed_on(self._device))
        logits = self._allocate("logits", (len(initial), config.out_features), self._dtype)
        store = write_into(logits)
        with torch.inference_mode():
            sums = passes.inputs(model, self._inputs, initial).to(model.like)

            def answer(rows: slice, graph_states: torch.Tensor) -> None:
                answers = model.answer_from(sums, passes.on_device(self._inputs[rows]), graph_states)
                store(rows, answers.logits)

            layer = initial
            for number in range(1, config.layers):
                out = self._layers[number % len(self._layers)]
                passes.layer(model, number, layer, initial, write_into(out))
                layer = out
            if config.layers:
                passes.layer(model, config.layers, layer, initial, answer)
            else:
                for rows in passes.chunks(0, len(initial)):
                    answer(rows, passes.on_device(initial[rows]))
        return logits


def full_logits(
    config: ModelConfig,
    weights: Mapping[str, NDArray[Any]],
    graph: Graph,
    *,
    dtype: Any = np.float32,
    device: torch.device | str = "cpu",
) -> NDArray[Any]:
    """The logits of all nodes, once (see `FullForward`)."""
    return FullForward(config, graph, dtype, device).logits(weights)
