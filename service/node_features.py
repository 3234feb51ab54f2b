"""The features of a node in a request: checked against the model, and encoded if they are given by name."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store import FeatureValueError
from model_store.structural import values_of_neighbors
from service.engines.served_model import ServedModel
from service.errors import Refusal
from service.request_fields import NodeId, SparseFeatures


def checked_features(
    model: ServedModel, features: Any, subject: str, neighbors: Collection[NodeId] | None = None, **details: Any
) -> Any:
    """The features as a dense row or as SparseFeatures.

    Args:
        neighbors: distinct neighbours of a new node; structural features that the request lacks are computed from them.

    Raises:
        Refusal: with `details`, and a text that names `subject`, such as `new node 'a'`.
    """
    if isinstance(features, dict):
        if model.structural and neighbors is not None:
            computed = values_of_neighbors(model.structural, neighbors)
            features = features | {name: computed[name] for name in computed if features.get(name) is None}
        return _by_name(model, features, subject, details)
    width, problem = model.config.in_features, ""
    if not isinstance(features, SparseFeatures):
        if len(features) != width:
            names = "; GET /features lists their names" if model.schema else ""
            problem = f"{len(features)} features, expected {width}{names}"
    elif len(features.indices) != len(features.values):
        problem = f"{len(features.indices)} indices and {len(features.values)} values, expected as many of both"
    elif features.indices and max(features.indices) >= width:
        problem = f"feature index {max(features.indices)}, expected 0 to {width - 1}"
    elif len(set(features.indices)) != len(features.indices):
        problem = "a feature index more than once"
    if problem:
        raise Refusal("invalid", f"{subject} has {problem}", **details)
    return features


def _by_name(model: ServedModel, features: dict[str, Any], subject: str, details: dict[str, Any]) -> NDArray[np.float64]:
    if model.schema is None:
        message = f"{subject} has no features"
        if features:
            message = f"{subject} has features by name, and version {model.version} was trained without names"
        expected = f'expected a list of {model.config.in_features} numbers, or {{"indices": [...], "values": [...]}}'
        raise Refusal("invalid", f"{message}; {expected}", **details)
    try:
        return model.schema.encode(features)
    except FeatureValueError as error:
        raise Refusal("invalid", f"{subject}: {error}", feature=error.column, **details) from None
