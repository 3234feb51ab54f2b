"""The mathematics that every contestant of /predict answers with. No web framework: all of them import it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store import Store
from sgformer import NewNodes, probabilities

Shares = NDArray[np.floating[Any]]
"""(nodes, classes) probabilities."""
NewNode = tuple[Any, Sequence[float], Sequence[int]]
"""Its id, its features and its neighbours."""


class Model:
    """The only model of a store, from mapped memory."""

    def __init__(self, store: str) -> None:
        (name,) = Store(store).models()
        self._snapshot = Store(store).model(name).open()

    def known(self, nodes: Any) -> Shares:
        return probabilities(self._snapshot.known_logits(np.asarray(nodes)), "multiclass")

    def new(self, features: Any, neighbors: Sequence[Sequence[int]]) -> Shares:
        manifest = self._snapshot.manifest
        new = NewNodes.build(
            np.asarray(features),
            neighbors,
            num_nodes=manifest.sizes.nodes,
            num_features=manifest.config.in_features,
        )
        return probabilities(self._snapshot.extended(new).logits, "multiclass")

    def answers(self, nodes: Sequence[int], new_nodes: Sequence[NewNode]) -> dict[str, Any]:
        """What /predict would answer, ready for JSON."""
        found = []
        if nodes:
            found += _told(nodes, self.known(nodes))
        if new_nodes:
            ids, features, neighbors = zip(*new_nodes, strict=True)
            found += _told(ids, self.new(features, neighbors))
        return {"predictions": found}


def _told(ids: Sequence[Any], shares: Shares) -> list[dict[str, Any]]:
    return [
        {"node": node, "label": label, "probabilities": row}
        for node, label, row in zip(ids, shares.argmax(axis=1).tolist(), shares.tolist(), strict=True)
    ]
