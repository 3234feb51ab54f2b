"""The live graph of a model in a store, read without a service: its state, and its data as `graph.npz`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store import DataError, Store
from model_store.cli.terminal import default_log, format_bytes
from model_store.graph_log import GraphLog
from model_store.live_graph.current_data import CurrentData, current_data, open_live_graph
from model_store.live_graph.live_graph import LiveGraph
from sgformer import SparseRows


def stored_state(root: Path, model: str | None) -> dict[str, Any]:
    """The fields of GET /graph that can be read from the store."""
    with _open(root, model) as (live, log):
        manifest = live.snapshot.manifest
        origin = {"model": manifest.model, "version": int(live.snapshot.folder.name), "snapshot": manifest.snapshot}
        return origin | live.describe() | {"log": {"bytes": log.size_bytes}}


def describe_state(state: dict[str, Any]) -> str:
    since_version = state["sequence"] - state["snapshot_sequence"]
    overlay = state["overlay"]
    rows = {
        "model": f"{state['model']} {state['version']}",
        "graph": f"{state['graph'][:16]}: {state['nodes']:,} nodes, {state['edges']:,} edges",
        "changes": f"{state['sequence']:,}, of which {since_version:,} since the version was made",
        "overlay": f"changed edges at {overlay['nodes']:,} nodes, changed features at {overlay['features']:,}",
        "log": format_bytes(state["log"]["bytes"]) if state.get("log") else "none",
    }
    return "\n".join(f"{name:<10}{value}" for name, value in rows.items())


def export_graph(file: Path, root: Path, model: str | None) -> dict[str, Any]:
    """Writes the graph as it is now, all or nothing. Returns facts about it."""
    if file.suffix != ".npz":
        raise DataError(f"{file.name} must end in .npz")
    with _open(root, model) as (live, _):
        data = current_data(live)
    temporary = file.with_name(f".{file.name}")
    try:
        with temporary.open("wb") as stream:
            np.savez(stream, allow_pickle=False, **_arrays(data))
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    graph = data.graph
    return {"file": str(file), "nodes": graph.num_nodes, "edges": graph.num_edges, **data.position}


def _arrays(data: CurrentData) -> dict[str, NDArray[Any]]:
    """As `model_store.publish.graph_file` describes. Without a split drawn from the ids: training redraws it."""
    arrays: dict[str, NDArray[Any]] = {"edge_index": data.graph.adjacency.edge_index()}
    features = data.graph.features
    if isinstance(features, SparseRows):
        arrays |= {"x_data": features.values, "x_indices": features.indices, "x_indptr": features.indptr}
        arrays["x_shape"] = np.array(features.shape)
    else:
        arrays["x"] = features
    if data.labels is not None:
        arrays["y"] = data.labels
        if data.manifest.training.get("split") is None and (data.split >= 0).any():
            arrays["split"] = data.split
    if data.node_ids is not None:
        arrays["node_ids"] = np.array(data.node_ids.names(range(data.graph.num_nodes)))
    if data.manifest.classes is not None:
        arrays["class_names"] = np.array(data.manifest.classes)
    return arrays


@contextmanager
def _open(root: Path, model: str | None) -> Iterator[tuple[LiveGraph, GraphLog]]:
    store = Store(root, redis=default_log())
    with store.model(model or store.only_model()).open() as snapshot, open_live_graph(snapshot, store.redis) as opened:
        yield opened
