"""The answers of the model for the servers that /predict is compared with. Imports no web framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store import Store
from sgformer import NewNodes, probabilities

Probabilities = NDArray[np.floating[Any]]
"""(nodes, classes)."""
NewNode = tuple[Any, Sequence[float], Sequence[int]]
"""Its id, its features and its neighbours."""


class Model:
    """The only model of a store, memory-mapped."""

    def __init__(self, store: str) -> None:
        (name,) = Store(store).models()
        self._snapshot = Store(store).model(name).open()

    def known(self, nodes: Any) -> Probabilities:
        return probabilities(self._snapshot.known_logits(np.asarray(nodes)), "multiclass")

    def new(self, features: Any, neighbors: Sequence[Sequence[int]]) -> Probabilities:
        manifest = self._snapshot.manifest
        new = NewNodes.build(
            np.asarray(features), neighbors, num_nodes=manifest.sizes.nodes, num_features=manifest.config.in_features
        )
        return probabilities(self._snapshot.extended(new).logits, "multiclass")

    def answers(self, nodes: Sequence[int], new_nodes: Sequence[NewNode]) -> dict[str, Any]:
        """Returns the response of /predict, as JSON types."""
        predictions = []
        if nodes:
            predictions += _to_json(nodes, self.known(nodes))
        if new_nodes:
            ids, features, neighbors = zip(*new_nodes, strict=True)
            predictions += _to_json(ids, self.new(features, neighbors))
        return {"predictions": predictions}


def _to_json(ids: Sequence[Any], rows: Probabilities) -> list[dict[str, Any]]:
    return [
        {"node": node, "label": label, "probabilities": row}
        for node, label, row in zip(ids, rows.argmax(axis=1).tolist(), rows.tolist(), strict=True)
    ]
