"""Publishes a trained model as a version in the store, or an existing version's weights over another graph."""

from __future__ import annotations

from typing import Any

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
    report: Any = None,
    **options: Any,
) -> int:
    """Publishes a model with its graph and returns the version's number.

    Args:
        model: an `SGFormer` of this project or of PyTorch Geometric.
        graph: a `Graph`, or PyTorch Geometric's `Data`.
        report: as in `Contents`.
        options: those of `Store.publish`: activate, states, onnx.
    """
    model = model if isinstance(model, SGFormer) else _from_pyg(model)
    if not isinstance(graph, Graph):
        graph = Graph.build(graph.x.numpy(), graph.edge_index.numpy())
    descriptions = (dataset or {}, training or {}, scores or {}, report)
    contents = Contents(model.config, model.weights(), graph, node_ids, class_names, *descriptions)
    return store.publish(name, contents, **options)


def refresh(
    store: Store,
    name: str,
    graph: Graph,
    *,
    version: int | None = None,
    job: str | None = None,
    mode: str = "never",
    **details: Any,
) -> int:
    """Publishes the weights of a version (by default the live one) over another graph, without training.

    Class names are kept. Scores are not, because they were measured on the other graph.

    Args:
        job, mode: the id of the job and its `activate`, for the manifest.
        details: those of `publish`.
    """
    with store.model(name).open(version) as snapshot:
        manifest, weights = snapshot.manifest, dict(snapshot.weights)
        number, has_ids = int(snapshot.folder.name), snapshot.node_ids is not None
    if graph.num_features != manifest.config.in_features:
        raise DataError(f"the model reads {manifest.config.in_features} features, the new graph has {graph.num_features}")
    if has_ids and details.get("node_ids") is None:
        raise DataError(f"the nodes of version {number} have ids of their own, those of the new graph have none")
    old, new = (dataset.get("features") for dataset in (manifest.dataset, details.get("dataset", {})))
    if old and new and old != new:
        raise DataError(f"the model was trained on the features {', '.join(old)}; the new data has {', '.join(new)}")
    model = SGFormer(manifest.config)
    model.load_weights(weights)
    origin = {"refreshed_from": {"version": number, "snapshot": manifest.snapshot}, JOB_KEY: job, "activate": mode}
    training = {**manifest.training, **origin}
    details = {"class_names": manifest.classes, "training": training, "states": manifest.sizes.states} | details
    return publish(model.eval(), graph, store=store, name=name, **details)


def _from_pyg(model: Any) -> SGFormer:
    if not type(model).__module__.startswith("torch_geometric"):
        raise DataError(
            f"cannot publish a {type(model).__name__}, expected an SGFormer of this project or of PyTorch Geometric"
        )
    return from_pyg(model.state_dict(), graph_weight=float(model.graph_weight))
