"""The answers of all nodes of a graph, again and again with other weights: what evaluation during training needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sgformer.arrays.torch_operations import placed_on
from sgformer.config import ModelConfig
from sgformer.full_graph.passes import Passes, stored_in
from sgformer.graph import Graph
from sgformer.request_time.inference import InferenceModel


class FullForward:
    """The full-graph forward of models of one shape over one graph; keeps its working memory from call to call."""

    def __init__(
        self, config: ModelConfig, graph: Graph, dtype: Any = np.float32, device: torch.device | str = "cpu"
    ) -> None:
        self._config, self._dtype, self._device = config, np.dtype(dtype), device
        self._passes = Passes(config, graph, dtype, device)
        shape = (graph.num_nodes, config.hidden)
        self._inputs = np.empty(shape, dtype=dtype)
        self._initial = self._inputs if config.gnn_input == "shared" else np.empty(shape, dtype=dtype)
        spare = min(config.layers - 1, 1 if self._passes.single_block else 2)
        self._layers = [np.empty(shape, dtype=dtype) for _ in range(spare)]

    def logits(self, weights: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """The evaluation-mode logits of every node, in a new array. `weights` are as `SGFormer.weights()` gives them."""
        config, passes, initial = self._config, self._passes, self._initial
        model = InferenceModel(config, weights, self._dtype, placed_on(self._device))
        logits = np.empty((len(initial), config.out_features), dtype=self._dtype)
        store = stored_in(logits)
        with torch.inference_mode():
            sums = passes.inputs(model, self._inputs, initial).to(model.like)

            def answer(rows: slice, graph_states: torch.Tensor) -> None:
                answers = model.answer_from(sums, passes.on_device(self._inputs[rows]), graph_states)
                store(rows, answers.logits)

            layer = initial
            for number in range(1, config.layers):
                out = self._layers[number % len(self._layers)]
                passes.layer(model, number, layer, initial, stored_in(out))
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
    """`FullForward` for a single call."""
    return FullForward(config, graph, dtype, device).logits(weights)
