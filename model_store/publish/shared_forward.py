"""The full-graph forward of a snapshot, by one process or by all processes of a run: each writes its own rows.

The process that publishes (rank 0) calls `summarize_into`; the others call `assist` at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from model_store.format import layout, npy
from model_store.format.layout import ArraySpec
from model_store.format.scratch import scratch_files
from sgformer import Graph, ModelConfig, Summary, summarize
from sgformer.full_graph.collectives import broadcast, world_size
from sgformer.full_graph.shard import Shard

Weights = Mapping[str, NDArray[Any]]


def summarize_into(folder: Path, config: ModelConfig, weights: Weights, graph: Graph, device: str) -> Summary:
    """Writes the states of all nodes into files of the folder, and returns them, mapped."""

    def create(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        return npy.create(folder / layout.state_file(name), ArraySpec(shape, dtype.str))

    with np.errstate(all="ignore"):  # `check_finite` reports an overflow, with the node
        if world_size() == 1:
            return summarize(config, weights, graph, device=device, allocate=create)
        shape = (graph.num_nodes, config.hidden)
        arrays = {name: create(name, shape, np.dtype("<f4")) for name in layout.state_names(config)}
        broadcast(str(folder.resolve()))
        sums = _write_rows(folder, config, weights, graph, device).sums
    return Summary(layout.states_from(config, arrays), sums)


def assist(config: ModelConfig, weights: Weights, graph: Graph, device: str) -> None:
    """Computes and writes the rows of this process. Returns when all rows are written."""
    with np.errstate(all="ignore"):
        _write_rows(Path(broadcast(None)), config, weights, graph, device)


def _write_rows(folder: Path, config: ModelConfig, weights: Weights, graph: Graph, device: str) -> Summary:
    shard = Shard.of(graph, scratch_files(folder))
    mapped: list[Any] = []

    def own_rows(name: str, _shape: tuple[int, ...], _dtype: np.dtype[Any]) -> NDArray[Any]:
        mapped.append(np.load(folder / layout.state_file(name), mmap_mode="r+"))
        return np.asarray(mapped[-1][shard.start : shard.stop])

    summary = summarize(config, weights, graph, device=device, allocate=own_rows, shard=shard)
    for array in mapped:
        array.flush()  # another machine may read the file
    dist.barrier()
    return summary
