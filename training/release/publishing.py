"""From a trained model to a version in the store, and from an existing version to one over new data."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store import Contents, DataError, NodeIds, Store
from model_store.run_contract import JOB_KEY
from sgformer import Graph, SGFormer, from_pyg


def publish(
    model: Any,
    graph: Any,
    *,
    store: Store,
    name: str,
    node_ids: NodeIds | None = None,
    class_names: tuple[str, ...] | None = None,
    dataset: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    scores: dict[str, Any] | None = None,
    report: str | None = None,
    **options: Any,
) -> int:
    """Publishes a model with its graph and returns the version's number.

    Args:
        model: an `SGFormer` of ours, or PyTorch Geometric's.
        graph: a `Graph`, or PyTorch Geometric's `Data`.
        options: those of `Store.publish`: activate, states, onnx.
    """
    ours = model if isinstance(model, SGFormer) else _from_pyg(model)
    if not isinstance(graph, Graph):
        graph = Graph.build(graph.x.numpy(), graph.edge_index.numpy())
    contents = Contents(
        ours.config, ours.weights(), graph, node_ids, class_names, dataset or {}, training or {}, scores or {}, report
    )
    return store.publish(name, contents, **options)


def refresh(
    store: Store, name: str, graph: Graph, *, version: int | None = None, job: str | None = None, **details: Any
) -> int:
    """The weights of a version (by default the live one) over another graph: new sums and states, no training.

    `details` are those of `publish`; class names come along, scores do not: they were of the other graph.
    """
    with store.model(name).open(version) as snapshot:
        manifest, weights = snapshot.manifest, snapshot.weights
        number = int(snapshot.folder.name)
        had_ids = snapshot.node_ids is not None
    if graph.num_features != manifest.config.in_features:
        raise DataError(f"the model reads {manifest.config.in_features} features, the new graph has {graph.num_features}")
    if had_ids and details.get("node_ids") is None:
        raise DataError(f"the nodes of version {number} have ids of their own, those of the new graph have none")
    before, now = (about.get("features") for about in (manifest.dataset, details.get("dataset", {})))
    if before and now and before != now:
        raise DataError(f"the model was trained on the features {', '.join(before)}; the new data has {', '.join(now)}")
    model = SGFormer(manifest.config)
    model.load_weights({tensor: np.asarray(array) for tensor, array in weights.items()})
    lineage = dict(manifest.training) | {"refreshed_from": {"version": number, "snapshot": manifest.snapshot}, JOB_KEY: job}
    details = {"class_names": manifest.classes, "training": lineage, "states": manifest.sizes.states} | details
    return publish(model.eval(), graph, store=store, name=name, **details)


def _from_pyg(model: Any) -> SGFormer:
    if not type(model).__module__.startswith("torch_geometric"):
        raise DataError(f"cannot publish a {type(model).__name__}, expected an SGFormer of ours or of PyTorch Geometric")
    return from_pyg(model.state_dict(), graph_weight=float(model.graph_weight))
