"""The full-graph forward, streamed: one pass over chunks of rows per layer, leaving node states and attention sums.

Beyond its results it holds one chunk of everything, so results that are memory-mapped files make it run on graphs whose
states exceed memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from sgformer.config import ModelConfig
from sgformer.errors import GraphError
from sgformer.graph import Graph
from sgformer.inference import Answers, InferenceModel
from sgformer.propagation import Propagation, Rows
from sgformer.states import NodeStates
from sgformer.sums import AttentionSums
from sgformer.torch_arrays import placed_on

CHUNK_ROWS = 8192
"""Rows per step of the dense work: small enough to stay in the cache."""
BLOCK_ENTRIES = 4_000_000
BLOCK_ROWS = 131_072
"""Edges and rows per sparse product, which is faster in few large pieces."""

Allocate: TypeAlias = Callable[[str, tuple[int, int], np.dtype[Any]], NDArray[Any]]
"""Makes a writable array for a named result, e.g. a memory-mapped file."""


Emit: TypeAlias = Callable[[slice, torch.Tensor], None]
"""Takes the finished states of some rows."""


def in_memory(_name: str, shape: tuple[int, int], dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.empty(shape, dtype=dtype)


@dataclass(frozen=True)
class Summary:
    """All that serving needs besides the weights and the graph."""

    states: NodeStates
    sums: AttentionSums
    model: InferenceModel
    """The torch form of the model that made it."""

    def answers(self, chunk_rows: int = CHUNK_ROWS) -> Iterator[Answers]:
        """The answers of all nodes, chunk by chunk, as torch tensors."""
        with torch.inference_mode():
            sums = self.sums.to(self.model.like)
            for rows in _chunks(self.states.num_nodes, chunk_rows):
                yield self.model.known(self.states, sums, rows)

    def logits(self) -> NDArray[Any]:
        logits = np.empty((self.states.num_nodes, self.model.config.out_features), dtype=self.model.dtype)
        start = 0
        for answers in self.answers():
            logits[start : start + len(answers.logits)] = answers.logits.cpu().numpy()
            start += len(answers.logits)
        return logits


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
    """The evaluation-mode forward of a model over a whole graph.

    Args:
        weights: as `SGFormer.weights()` gives them.
        allocate: called as (name, shape, dtype) for `inputs`, `layer_0` .. `layer_L` and `aggregate_1` .. `aggregate_{L-1}`.
    """
    model = _checked_model(config, weights, graph, dtype, device)
    shape, count = (graph.num_nodes, config.hidden), config.layers
    with torch.inference_mode():
        inputs, initial, sums = _input_pass(model, graph, chunk_rows, allocate)
        blocks, layers, aggregates = _Blocks(model, graph), [initial], []
        for number in range(1, count + 1):
            layer = allocate(f"layer_{number}", shape, model.dtype)
            if number < count:
                aggregates.append(allocate(f"aggregate_{number}", shape, model.dtype))
            aggregate = aggregates[-1] if number < count else None
            _layer_pass(model, blocks, number, layers[-1], initial, _into(layer), aggregate)
            layers.append(layer)
    return Summary(NodeStates(inputs, tuple(layers), tuple(aggregates)), sums, model)


def full_logits(
    config: ModelConfig,
    weights: Mapping[str, NDArray[Any]],
    graph: Graph,
    *,
    dtype: Any = np.float32,
    device: torch.device | str = "cpu",
) -> NDArray[Any]:
    """The logits of all nodes, with nothing else kept: what evaluation during training needs."""
    model = _checked_model(config, weights, graph, dtype, device)
    logits = np.empty((graph.num_nodes, config.out_features), dtype=model.dtype)
    with torch.inference_mode():
        inputs, initial, sums = _input_pass(model, graph, CHUNK_ROWS, in_memory)
        sums = sums.to(model.like)

        def answer(rows: slice, states: torch.Tensor) -> None:
            answers = model.answer_from(sums, torch.from_numpy(inputs[rows]).to(states.device), states)
            logits[rows] = answers.logits.cpu().numpy()

        if config.layers == 0:
            for rows in _chunks(graph.num_nodes, CHUNK_ROWS):
                answer(rows, torch.from_numpy(initial[rows]).to(model.like.device))
            return logits
        blocks, layer = _Blocks(model, graph), initial
        spare = [np.empty_like(initial) for _ in range(min(config.layers - 1, 2))]
        for number in range(1, config.layers):
            out = spare[number % len(spare)]
            _layer_pass(model, blocks, number, layer, initial, _into(out))
            layer = out
        _layer_pass(model, blocks, config.layers, layer, initial, answer)
    return logits


def _checked_model(
    config: ModelConfig, weights: Mapping[str, NDArray[Any]], graph: Graph, dtype: Any, device: torch.device | str
) -> InferenceModel:
    if graph.num_features != config.in_features:
        raise GraphError(f"features are {graph.num_features} wide, this model expects {config.in_features}")
    return InferenceModel(config, weights, dtype, placed_on(device))


def _input_pass(
    model: InferenceModel, graph: Graph, chunk_rows: int, allocate: Allocate
) -> tuple[NDArray[Any], NDArray[Any], AttentionSums]:
    config, shape = model.config, (graph.num_nodes, model.config.hidden)
    inputs = allocate("inputs", shape, model.dtype)
    initial = inputs if config.gnn_input == "shared" else allocate("layer_0", shape, model.dtype)
    sums = AttentionSums.empty(config.normalization, config.heads, config.hidden)
    for rows in _chunks(graph.num_nodes, chunk_rows):
        states, graph_states = model.inputs(graph.features[rows])
        inputs[rows] = states.cpu().numpy()
        if initial is not inputs:
            initial[rows] = graph_states.cpu().numpy()
        names = ("query", "key", "value") if config.normalization == "frobenius" else ("key", "value")
        *query, key, value = model.project(states, *names)
        sums = sums + AttentionSums.of_rows(config.normalization, query[0] if query else None, key, value).on_host()
    return inputs, initial, sums


def _layer_pass(
    model: InferenceModel,
    blocks: _Blocks,
    number: int,
    previous: NDArray[Any],
    initial: NDArray[Any],
    emit: Emit,
    aggregate_out: NDArray[Any] | None = None,
) -> None:
    """GCN layer `number` (from 1) of all nodes, from the layer before it and the GCN's input, handed on chunk by chunk."""
    apply, device = model.graph_layers[number - 1], model.like.device
    states = torch.from_numpy(previous).to(device)
    for block, propagation in blocks:
        aggregate = propagation.product(states, states[block], blocks.scratch[: block.stop - block.start])
        if aggregate_out is not None:
            aggregate_out[block] = aggregate.cpu().numpy()
        for part in _chunks(len(aggregate), CHUNK_ROWS):
            rows = slice(block.start + part.start, block.start + part.stop)
            start = torch.from_numpy(initial[rows]).to(device) if apply.reads_initial else None
            emit(rows, apply(aggregate[part], start))


def _into(array: NDArray[Any]) -> Emit:
    def store(rows: slice, states: torch.Tensor) -> None:
        array[rows] = states.cpu().numpy()

    return store


class _Blocks:
    """Runs of rows of the propagation with a bounded number of edges. A graph of one block builds its weights once for all
    layers; a larger one builds them again for each, and so never holds more than one block.
    """

    def __init__(self, model: InferenceModel, graph: Graph) -> None:
        adjacency = graph.adjacency
        self._rows = Rows(adjacency, model.like.dtype, model.like.device)
        self._bounds = [0]
        while (start := self._bounds[-1]) < adjacency.num_nodes:
            full = int(np.searchsorted(adjacency.indptr, adjacency.indptr[start] + BLOCK_ENTRIES, side="right")) - 1
            self._bounds.append(min(max(full, start + 1), start + BLOCK_ROWS, adjacency.num_nodes))
        self._only = self._rows.between(0, adjacency.num_nodes) if len(self._bounds) == 2 else None
        # One result for the products of all blocks, because the faults of fresh pages cost more than the products (numpy
        # asks for huge pages, torch does not).
        rows = max(stop - start for start, stop in pairwise(self._bounds))
        scratch = np.empty((rows, model.config.hidden), dtype=model.dtype)
        self.scratch = torch.from_numpy(scratch).to(model.like.device)

    def __iter__(self) -> Iterator[tuple[slice, Propagation]]:
        for start, stop in pairwise(self._bounds):
            yield slice(start, stop), self._only or self._rows.between(start, stop)


def _chunks(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))
