"""Passes over all rows of a graph: the parts of the streamed full-graph forward.

Dense work runs in chunks that fit into the cache, and sparse products in larger blocks. Beyond the arrays of the caller, the
passes hold a chunk or a block at a time.

On a GPU, the arrays of the caller stay in host memory. The states that a layer reads are placed on the GPU if they fit;
else each block copies those of its neighbours to the GPU. While the GPU computes, a thread prepares the next block or chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from sgformer.arrays.torch_operations import shared
from sgformer.config import ModelConfig
from sgformer.device import fits_on_gpu
from sgformer.full_graph.prefetch import prefetched
from sgformer.full_graph.shard import CHUNK_ROWS, Shard
from sgformer.graph import Graph
from sgformer.request_time.inference import InferenceModel
from sgformer.sums import AttentionSums
from sgformer.torch_model.propagation import Propagation, PropagationRows

BLOCK_ENTRIES = 4_000_000
"""Most adjacency entries of a block of more than one row."""
BLOCK_ROWS = 131_072
"""Most rows of a block: this bounds the memory of its product. A sparse product is faster in few large blocks."""

Emit: TypeAlias = Callable[[slice, torch.Tensor], None]
"""Receives the finished states of some rows."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class Passes:
    """The passes over a graph, for models of the same configuration. Holds what does not depend on the weights."""

    def __init__(
        self,
        config: ModelConfig,
        graph: Graph,
        dtype: Any = np.float32,
        device: torch.device | str = "cpu",
        chunk_rows: int = CHUNK_ROWS,
        shard: Shard | None = None,
    ) -> None:
        """`shard`: the rows of this process, if several processes share the graph; all of them call the same methods."""
        graph.check_width(config.in_features)
        shard = shard or Shard(0, graph.num_nodes, graph.features, graph.adjacency, 0, graph.adjacency.all_degrees())
        self._shard, self._device, self._chunk_rows = shard, torch.device(device), chunk_rows
        shares, whole = shard.product_shares, (shard.first_row, shard.first_row + shard.num_rows)
        self._blocks = self._blocks_of([shares.kept if shares else whole])
        self._given_blocks = self._blocks_of(shares.given if shares else [])
        self._received_blocks = self._blocks_of(shares.received if shares else [])
        # All blocks share an array for their products: page faults of a new array cost more than the products. It comes from
        # numpy, which asks for huge pages; torch does not.
        block_rows = max((stop - start for start, stop in self._blocks + self._given_blocks), default=0)
        self._product = torch.from_numpy(np.empty((block_rows, config.hidden), dtype=dtype)).to(device)
        self._rows = PropagationRows(shard.adjacency, self._product.dtype, device, shard.degrees)
        self._only_block = {block: self._rows.between(*block) for block in self._blocks} if self.single_block else {}

    @property
    def single_block(self) -> bool:
        """True if a layer has one product, which reads its whole input first: the output may then overwrite the input."""
        return len(self._blocks) <= 1

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

        def read(rows: slice) -> tuple[slice, torch.Tensor, torch.Tensor]:
            return rows, *model.inputs(self._shard.features[rows])

        for rows, states, graph_states in self._ahead(read, self.chunks(0, self._shard.num_rows)):
            store(rows, states)
            if initial is not inputs:
                store_initial(rows, graph_states)
            *query, key = model.project(states, *names)
            part = AttentionSums.of_rows(config.normalization, query[0] if query else None, key, states[:, None, :])
            sums = sums + part.on_host()
        return model.with_mapped_values(self._shard.total(sums))

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
        apply = model.graph_layers[number - 1]
        for block, product in self._products(self._shard.extended(previous)):
            first, last = (bound - self._shard.first_row for bound in (block.start, block.stop))
            if aggregate is not None:
                write_into(aggregate)(slice(first, last), product)
            for rows in self.chunks(first, last):
                added = None if apply.reads is None else self.on_device((initial if apply.reads == 0 else previous)[rows])
                emit(rows, apply(product[rows.start - first : rows.stop - first], added))

    def _products(self, states: NDArray[Any]) -> Iterator[tuple[slice, torch.Tensor]]:
        """Rows of P times the extended states, for all rows of the range, with their numbers in the shard's adjacency."""
        placed, shares = self._place(states), self._shard.product_shares
        if shares is None:
            yield from self._multiplied(states, placed, self._blocks)
            return
        handed_over = shares.array(states.shape[1], states.dtype)
        store = write_into(handed_over)
        for rows, product in self._multiplied(states, placed, self._given_blocks):
            store(rows, product)
        announced = shares.announce()
        yield from self._multiplied(states, placed, self._blocks)
        announced.wait()
        for start, stop in self._received_blocks:
            yield slice(start, stop), self.on_device(handed_over[start:stop])

    def _multiplied(
        self, states: NDArray[Any], placed: torch.Tensor | None, blocks: list[tuple[int, int]]
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        for block, propagation, columns, own in self._ahead(partial(self._block, states, placed), blocks):
            yield block, propagation.product(columns, own, self._product[: block.stop - block.start])

    def _blocks_of(self, ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Cuts ranges of rows of the shard's adjacency into blocks."""
        indptr, blocks = self._shard.adjacency.indptr, []
        for start, stop in ranges:
            while start < stop:
                full = int(np.searchsorted(indptr, indptr[start] + BLOCK_ENTRIES, side="right")) - 1
                end = min(max(full, start + 1), start + BLOCK_ROWS, stop)
                blocks.append((start, end))
                start = end
        return blocks

    def _place(self, states: NDArray[Any]) -> torch.Tensor | None:
        """All states on the device; None if they do not fit."""
        return self.on_device(states) if self._on_host or fits_on_gpu(self._device, states.nbytes) else None

    def _block(
        self, states: NDArray[Any], placed: torch.Tensor | None, bounds: tuple[int, int]
    ) -> tuple[slice, Propagation, torch.Tensor, torch.Tensor]:
        """A block of rows of P, with the states of its columns and of its rows."""
        rows = slice(*bounds)
        if placed is not None:
            return rows, self._only_block.get(bounds) or self._rows.between(*bounds), placed, placed[rows]
        columns = self._rows.neighbors(*bounds)
        propagation = self._rows.between(*bounds, columns)
        return rows, propagation, self.on_device(states[columns]), self.on_device(states[rows])

    def _ahead(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """The results of `function`, in order. With a GPU, a thread makes the next result while the GPU computes."""
        return map(function, items) if self._on_host else prefetched(function, items)

    @property
    def _on_host(self) -> bool:
        return self._device.type == "cpu"


def write_into(array: NDArray[Any]) -> Emit:
    """Returns a function that writes rows into `array`."""
    target = shared(array)

    def store(rows: slice, states: torch.Tensor) -> None:
        target[rows].copy_(states)  # on all cores, unlike a copy by numpy

    return store
