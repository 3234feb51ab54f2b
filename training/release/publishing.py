"""Publishes a trained model as a version in the store, or an existing version's weights over another graph."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store import Contents, DataError, FeatureSchema, NodeIds, Store
from model_store.publish.foreign_model import check_trained_edges, describe_edges
from model_store.publish.graph_file import graph_of_arrays
from model_store.run_contract import JOB_KEY
from sgformer import Graph, SGFormer, from_pyg
from training.data.python_graph import MASKS, pyg_arrays
from training.data.splits import from_nodes


def publish(
    model: Any,
    graph: Any,
    *,
    store: Store | Path | str,
    name: str,
    node_ids: NodeIds | Sequence[int | str] | NDArray[Any] | None = None,
    class_names: Sequence[str] | None = None,
    dataset: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    scores: dict[str, Any] | None = None,
    report: Any = None,
    labels: NDArray[Any] | None = None,
    split: NDArray[np.int8] | None = None,
    features: FeatureSchema | None = None,
    reading: Mapping[str, Any] | None = None,
    live: Mapping[str, Any] | None = None,
    undirected: bool = False,
    **options: Any,
) -> int:
    """Publishes a model with its graph and returns the version's number.

    The served graph is undirected, without repeated edges. A model of PyTorch Geometric whose graph has one-way or repeated
    edges is refused unless `undirected` is set, because its answers would differ; for a model of this project, a `Data` with
    such edges is published with a warning.

    Args:
        model: an `SGFormer` of this project or of PyTorch Geometric.
        graph: a `Graph`, or PyTorch Geometric's `Data`. Without `labels` and `split`, its classes and masks are used.
        store: a `Store` or its folder.
        node_ids: one id per node, strings or whole numbers.
        report: as in `Contents`; so are labels, split, features, reading and live.
        undirected: the one-way and repeated edges of the graph are meant as undirected edges.
        options: arguments of `Store.publish`: activate, states, onnx, raw_data, device.
    """
    ours, is_graph = isinstance(model, SGFormer), isinstance(graph, Graph)
    model = model if ours else _from_pyg(model)
    if not is_graph:
        graph, own_labels, own_split = _from_data(graph)
        labels = own_labels if labels is None else labels
        split = own_split if split is None else split
    if not ours:
        check_trained_edges(graph, undirected, "undirected=True")
    elif not is_graph and not undirected and not graph.adjacency.edge_list.symmetric:
        warnings.warn(f"the graph is served as undirected; of its edges, {graph.adjacency.edge_list}", stacklevel=2)
    node_ids = node_ids if node_ids is None or isinstance(node_ids, NodeIds) else NodeIds.build(node_ids)
    contents = Contents(
        model.config,
        model.weights(),
        graph,
        node_ids,
        None if class_names is None else tuple(class_names),
        dataset=describe_edges(graph) | (dataset or {}),
        training=training or {},
        scores=scores or {},
        report=report,
        labels=labels,
        split=split,
        features=features,
        reading=reading,
        live=live,
    )
    return (store if isinstance(store, Store) else Store(store)).publish(name, contents, **options)


def refresh(
    store: Store | Path | str,
    name: str,
    graph: Graph,
    *,
    version: int | None = None,
    job: str | None = None,
    mode: str = "never",
    **details: Any,
) -> int:
    """Publishes the weights of a version (by default the live one) over another graph, without training.

    Class names, feature names and the rules of reading are kept. Scores are not: they were measured on the other graph.

    Args:
        job: the id of the job, for the manifest.
        mode: the `activate` of the job, for the manifest.
        details: arguments of `publish`.
    """
    store = store if isinstance(store, Store) else Store(store)
    with store.model(name).open(version) as snapshot:
        manifest, weights = snapshot.manifest, dict(snapshot.weights)
        number, has_ids = int(snapshot.folder.name), snapshot.node_ids is not None
    if graph.num_features != manifest.config.in_features:
        raise DataError(f"the model reads {manifest.config.in_features} features, the new graph has {graph.num_features}")
    if has_ids and details.get("node_ids") is None:
        raise DataError(f"the nodes of version {number} have ids of their own, the nodes of the new graph have none")
    old, new = (dataset.get("features") for dataset in (manifest.dataset, details.get("dataset", {})))
    if old and new and old != new:
        raise DataError(f"the model was trained on the features {', '.join(old)}; the new data has {', '.join(new)}")
    model = SGFormer(manifest.config)
    model.load_weights(weights)
    origin = {"refreshed_from": {"version": number, "snapshot": manifest.snapshot}, JOB_KEY: job, "activate": mode}
    training = {**manifest.training, **origin}
    kept = {"class_names": manifest.classes, "features": manifest.features, "reading": manifest.reading}
    details = kept | {"training": training, "states": manifest.sizes.states} | details
    return publish(model.eval(), graph, store=store, name=name, **details)


def _from_data(data: Any) -> tuple[Graph, NDArray[Any] | None, NDArray[np.int8] | None]:
    """The graph of a `Data` of PyTorch Geometric, its classes and its split; None for a part that it does not have."""
    arrays = pyg_arrays(data)
    graph = graph_of_arrays(arrays, "Data").graph
    y, shape = arrays.get("y"), (graph.num_nodes,)
    labels = y if y is not None and y.shape == shape and y.dtype.kind in "iu" else None
    masks = [arrays[name] for name in MASKS if name in arrays and arrays[name].shape == shape]
    return graph, labels, from_nodes(graph.num_nodes, *masks) if len(masks) == len(MASKS) else None


def _from_pyg(model: Any) -> SGFormer:
    kind = type(model)
    if not kind.__module__.startswith("torch_geometric") or kind.__name__ != "SGFormer":
        hint = "; sgformer.from_pyg(state_dict) makes one" if isinstance(model, Mapping) else ""
        raise DataError(
            f"cannot publish a {kind.__name__}, expected an SGFormer of this project or of PyTorch Geometric{hint}"
        )
    return from_pyg(model.state_dict(), graph_weight=float(model.graph_weight))
