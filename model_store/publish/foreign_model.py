"""Imports a model with the weights of PyTorch Geometric or of the authors' code, together with its graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from model_store.errors import DataError, SnapshotError
from model_store.format.tensors import read_tensors
from model_store.publish.labelled_file import read_labelled_file
from model_store.publish.writer import Contents
from sgformer import Graph, SGFormer, SgformerError, from_authors_large, from_authors_medium, from_pyg

LAYOUTS: dict[str, Callable[..., SGFormer]] = {
    "pyg": from_pyg,
    "authors-large": from_authors_large,
    "authors-medium": from_authors_medium,
}


def import_contents(
    layout: str, weights: Path, graph: Path, settings: Mapping[str, str], *, undirected: bool = False
) -> Contents:
    """Builds the contents of a snapshot from a state dict (safetensors) and a `graph.npz`, with labels if the file has them.

    Args:
        undirected: accept a graph with one-way or repeated edges, and read it as undirected (`check_trained_edges`).
        settings: settings of the original model that its tensors do not show, e.g. {"graph_weight": "0.5"}; these are
            the keyword arguments of `from_pyg`, `from_authors_large` or `from_authors_medium`.

    Raises:
        DataError: a file cannot be read, or does not fit the layout.
    """
    if weights.suffix in (".pt", ".pth", ".bin", ".ckpt"):
        raise DataError(
            f"{weights.name} may be a pickle, which could run code; save the state dict with "
            "safetensors.torch.save_file(model.state_dict(), 'model.safetensors') and import that"
        )
    build = LAYOUTS[layout]
    try:
        model = build(read_tensors(weights.parent, weights.name), **_parse_settings(build, settings))
    except (SgformerError, SnapshotError, OSError) as error:
        raise DataError(f"cannot read {weights.name} with layout {layout}: {error}") from error
    config = model.config
    labelled = read_labelled_file(graph, config.task)
    file = labelled.file
    if config.in_features != file.graph.num_features:
        raise DataError(f"the model reads {config.in_features} features, the graph has {file.graph.num_features}")
    check_trained_edges(file.graph, undirected, "--undirected")
    return Contents(
        config,
        model.weights(),
        file.graph,
        file.node_ids,
        file.class_names,
        dataset={"name": graph.name} | describe_edges(file.graph),
        training={"imported_from": layout, "weights": weights.name, "settings": dict(settings)},
        labels=labelled.labels,
        split=labelled.split,
    )


def check_trained_edges(graph: Graph, undirected: bool, flag: str) -> None:
    """Raises DataError if the edge list has one-way or repeated edges.

    Another library may have trained on them as they are. The served graph is undirected and has each edge once.

    Args:
        undirected: the caller states that the weights are to be served with the undirected graph.
        flag: the flag or argument with which the caller states it, for the message.
    """
    edge_list = graph.adjacency.edge_list
    if edge_list is None or edge_list.symmetric or undirected:
        return
    raise DataError(
        f"the edge list has {edge_list.entries:,} entries ({edge_list}), but the served graph is undirected and has each "
        "edge once. If the weights were trained on these edges as they are, served answers differ from those of the "
        "original library. If they were trained on the undirected graph, or the difference is acceptable, say so with "
        f"{flag}"
    )


def describe_edges(graph: Graph) -> dict[str, Any]:
    """Returns the counts of the edge list, before it was made undirected and unique, for the manifest; {} if unknown."""
    return {} if graph.adjacency.edge_list is None else {"given_edges": asdict(graph.adjacency.edge_list)}


def _parse_settings(build: Callable[..., Any], settings: Mapping[str, str]) -> dict[str, Any]:
    """Converts each value to the type of the default value of its keyword argument."""
    parameters = inspect.signature(build).parameters.values()
    defaults = {parameter.name: parameter.default for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    if unknown := [name for name in settings if name not in defaults]:
        raise DataError(f"there is no setting {unknown[0]!r}, expected one of {', '.join(defaults)}")
    return {name: _parse_value(name, text, defaults[name]) for name, text in settings.items()}


def _parse_value(name: str, text: str, default: Any) -> Any:
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise DataError(f"{name} is {text!r}, expected true or false")
        return text == "true"
    if isinstance(default, float):
        try:
            return float(text)
        except ValueError:
            raise DataError(f"{name} is {text!r}, expected a number") from None
    return text
