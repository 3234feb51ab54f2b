"""The version that is live when a run starts, and the weights that a warm start takes from it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store import Store
from sgformer import ConfigError, ModelConfig
from sgformer.weights import expected_shapes

DATA_TENSORS = ("feature_mean", "feature_scale")
"""Measured on the training data, not learnt."""

Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class StartingPoint:
    """What a run starts from."""

    parent: int | None
    """The number of the live version; None if no version is live."""
    tensors: dict[str, NDArray[Any]] | None = None
    """The live tensors that a warm start begins with; None for a cold start."""
    fresh: tuple[str, ...] = ()
    """Tensors of a warm start that begin at random, because the live version has none of this shape."""

    @classmethod
    def of(cls, store: Store, name: str, config: ModelConfig, warm: bool) -> StartingPoint:
        """Raises ConfigError for a warm start if no version is live."""
        versions = store.model(name) if name in store.models() else None
        parent = None if versions is None else versions.live()
        if not warm:
            return cls(parent)
        if versions is None or parent is None:
            raise ConfigError(f"--warm-start: no version of {name} is live to start from")
        with versions.open(parent) as snapshot:
            live = dict(snapshot.weights)
        shapes = {tensor: shape for tensor, shape in expected_shapes(config).items() if tensor not in DATA_TENSORS}
        kept = {
            tensor: np.asarray(live[tensor])
            for tensor, shape in shapes.items()
            if tensor in live and np.shape(live[tensor]) == shape
        }
        return cls(parent, kept, tuple(tensor for tensor in shapes if tensor not in kept))

    def to_dict(self) -> dict[str, Any]:
        warm = None if self.tensors is None else {"tensors": len(self.tensors), "fresh": list(self.fresh)}
        return {"parent": self.parent, "warm_start": warm}


def digest_of(tensors: Tensors) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + np.ascontiguousarray(tensors[name]).tobytes())
    return digest.hexdigest()
