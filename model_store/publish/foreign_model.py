"""A model from elsewhere, with a graph, becomes a snapshot: weights in the layout of PyTorch Geometric or of the authors."""

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


def imported(layout: str, weights: Path, graph: Path, switches: Mapping[str, str]) -> Contents:
    """What to publish for a state dict (safetensors) and a `graph.npz`.

    Args:
        switches: settings of the original model that its tensors do not show, e.g. {"graph_weight": "0.5"}: the keyword
            arguments of `from_pyg`, `from_authors_large` or `from_authors_medium`.

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
        model = build(read_tensors(weights.parent, weights.name), **_parsed(build, switches))
    except (SgformerError, SnapshotError, OSError) as error:
        raise DataError(f"{weights.name} as {layout}: {error}") from error
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
        training={"imported_from": layout, "weights": weights.name, "switches": dict(switches)},
    )


def _parsed(build: Callable[..., Any], switches: Mapping[str, str]) -> dict[str, Any]:
    """Texts as the types of the function's own defaults."""
    known = {name: one for name, one in inspect.signature(build).parameters.items() if one.kind is one.KEYWORD_ONLY}
    parsed: dict[str, Any] = {}
    for name, text in switches.items():
        if name not in known:
            raise DataError(f"there is no setting {name!r}, expected one of {', '.join(known)}")
        parsed[name] = _value(name, text, known[name].default)
    return parsed


def _value(name: str, text: str, default: Any) -> Any:
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
