"""Dropout of what a model reads: values of features, and edges. In training only, so answers do not depend on it."""

from __future__ import annotations

import torch

from sgformer.torch_model.dropout import dropout
from sgformer.torch_model.model import GraphTensors


def drop_inputs(graph: GraphTensors, feature_share: float, edge_share: float) -> GraphTensors:
    """The graph without shares of its feature values and of its edges, drawn by torch's generator at every call.

    What is kept is scaled up, so that the mean of every product stays. An edge is kept or dropped in both directions.
    Self-loops are kept.
    """
    features, propagate = graph.features, graph.propagate
    if feature_share and isinstance(features, torch.Tensor):
        features = dropout(features, feature_share, training=True)
    elif feature_share and not isinstance(features, torch.Tensor):
        features = features.scaled(_factors(features.matrix, feature_share))
    if edge_share:
        propagate = propagate.scaled(_factors(propagate.matrix, edge_share))
    return GraphTensors(features, propagate)


def _factors(matrix: torch.Tensor, share: float) -> torch.Tensor:
    """For every stored entry, 0 if it is dropped, else 1 / (1 - share)."""
    return dropout(torch.ones_like(matrix.values()), share, training=True)
