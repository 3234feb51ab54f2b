"""Imports a model with the weights of PyTorch Geometric or of the authors' code, together with its graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from model_store.errors import DataError, SnapshotError
from model_store.format.tensors import read_tensors
from model_store.publish.graph_file import read_graph_file
from model_store.publish.writer import Contents
from sgformer import SGFormer, SgformerError, from_authors_large, from_authors_medium, from_pyg

LAYOUTS: dict[str, Callable[..., SGFormer]] = {
    "pyg": from_pyg,
    "authors-large": from_authors_large,
    "authors-medium": from_authors_medium,
}


def import_contents(layout: str, weights: Path, graph: Path, settings: Mapping[str, str]) -> Contents:
    """Builds the contents of a snapshot from a state dict (safetensors) and a `graph.npz`.

    Args:
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
    file = read_graph_file(graph)
    try:
        model = build(read_tensors(weights.parent, weights.name), **_parse_settings(build, settings))
    except (SgformerError, SnapshotError, OSError) as error:
        raise DataError(f"cannot read {weights.name} with layout {layout}: {error}") from error
    config = model.config
    if config.in_features != file.graph.num_features:
        raise DataError(f"the model reads {config.in_features} features, the graph has {file.graph.num_features}")
    return Contents(
        config,
        model.weights(),
        file.graph,
        file.node_ids,
        file.class_names,
        dataset={"name": graph.name},
        training={"imported_from": layout, "weights": weights.name, "settings": dict(settings)},
    )


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
