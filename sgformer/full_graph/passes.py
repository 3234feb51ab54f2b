"""Passes over all rows of a graph: the parts of the streamed full-graph forward.

Dense work runs in chunks that fit into the cache, and sparse products in larger blocks. Beyond the arrays of the caller, the
passes hold a chunk or a block at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from sgformer.arrays.torch_operations import shared
from sgformer.config import ModelConfig
from sgformer.graph import Graph
from sgformer.request_time.inference import InferenceModel
from sgformer.sums import AttentionSums
from sgformer.torch_model.propagation import Propagation, PropagationRows

CHUNK_ROWS = 8192
BLOCK_ENTRIES = 4_000_000
BLOCK_ROWS = 131_072
"""The largest numbers of edges and rows of a sparse product, which is faster in few large blocks."""

Emit: TypeAlias = Callable[[slice, torch.Tensor], None]
"""Receives the finished states of some rows."""


class Passes:
    """The passes over a graph, for models of the same configuration. Holds what does not depend on the weights."""

    def __init__(
        self,
        config: ModelConfig,
        graph: Graph,
        dtype: Any = np.float32,
        device: torch.device | str = "cpu",
        chunk_rows: int = CHUNK_ROWS,
    ) -> None:
        graph.check_width(config.in_features)
        self._graph, self._device, self._chunk_rows = graph, device, chunk_rows
        adjacency = graph.adjacency
        self._bounds = [0]
        while (start := self._bounds[-1]) < graph.num_nodes:
            full = int(np.searchsorted(adjacency.indptr, adjacency.indptr[start] + BLOCK_ENTRIES, side="right")) - 1
            self._bounds.append(min(max(full, start + 1), start + BLOCK_ROWS, graph.num_nodes))
        # All blocks share an array for their products: page faults of a new array cost more than the products. It comes from
        # numpy, which asks for huge pages; torch does not.
        block_rows = max(stop - start for start, stop in pairwise(self._bounds))
        self._product = torch.from_numpy(np.empty((block_rows, config.hidden), dtype=dtype)).to(device)
        self._rows = PropagationRows(adjacency, self._product.dtype, device)
        self._only = self._rows.between(0, graph.num_nodes) if self.single_block else None

    @property
    def single_block(self) -> bool:
        """True if all products of a layer precede its first result: its output may then overwrite its input."""
        return len(self._bounds) == 2

    def chunks(self, start: int, stop: int) -> Iterator[slice]:
        for begin in range(start, stop, self._chunk_rows):
            yield slice(begin, min(begin + self._chunk_rows, stop))

    def on_device(self, array: NDArray[Any]) -> torch.Tensor:
        return shared(array).to(self._device)

    def inputs(self, model: InferenceModel, inputs: NDArray[Any], initial: NDArray[Any]) -> AttentionSums:
        """Writes Z0 and the GCN's input (`initial`, which may be the same array), and returns the sums over all rows."""
        config = model.config
        names = ("query", "key") if config.normalization == "frobenius" else ("key",)
        sums = AttentionSums.empty(config.normalization, config.heads, config.hidden)
        store, store_initial = write_into(inputs), write_into(initial)
        for rows in self.chunks(0, self._graph.num_nodes):
            states, graph_states = model.inputs(self._graph.features[rows])
            store(rows, states)
            if initial is not inputs:
                store_initial(rows, graph_states)
            *query, key = model.project(states, *names)
            part = AttentionSums.of_rows(config.normalization, query[0] if query else None, key, states[:, None, :])
            sums = sums + part.on_host()
        return model.with_mapped_values(sums)

    def layer(
        self,
        model: InferenceModel,
        number: int,
        previous: NDArray[Any],
        initial: NDArray[Any],
        emit: Emit,
        aggregate: NDArray[Any] | None = None,
    ) -> None:
        """Computes GCN layer `number` (from 1) from the previous layer and the GCN's input, and emits it chunk by chunk.

        The propagated rows are written into `aggregate`, if given.
        """
        apply, states = model.graph_layers[number - 1], self.on_device(previous)
        for block, propagation in self._blocks():
            product = propagation.product(states, states[block], self._product[: block.stop - block.start])
            if aggregate is not None:
                aggregate[block] = product.cpu().numpy()
            for rows in self.chunks(block.start, block.stop):
                start = self.on_device(initial[rows]) if apply.reads_initial else None
                emit(rows, apply(product[rows.start - block.start : rows.stop - block.start], start))

    def _blocks(self) -> Iterator[tuple[slice, Propagation]]:
        """The blocks of rows with their edge weights, which are kept only if there is a single block."""
        for start, stop in pairwise(self._bounds):
            yield slice(start, stop), self._only or self._rows.between(start, stop)


def write_into(array: NDArray[Any]) -> Emit:
    """Returns a function that writes rows into `array`."""
    target = shared(array)

    def store(rows: slice, states: torch.Tensor) -> None:
        target[rows].copy_(states)  # on all cores, unlike a copy by numpy

    return store
