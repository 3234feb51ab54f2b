"""Beginning from the live weights instead of from random ones, tensor by tensor where the shapes fit."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgformer import ModelConfig
from sgformer.weights import expected_shapes

OF_THE_DATA = ("feature_mean", "feature_scale")
"""Measured on the data at hand, not learnt."""

Tensors = Mapping[str, NDArray[Any]]


def fitting(config: ModelConfig, live: Tensors) -> dict[str, NDArray[Any]]:
    """Those of the live tensors that a model of this configuration can begin with."""
    shapes = expected_shapes(config)
    return {
        name: np.asarray(live[name])
        for name, shape in shapes.items()
        if name not in OF_THE_DATA and name in live and np.shape(live[name]) == shape
    }


def fresh(config: ModelConfig, start: Tensors) -> list[str]:
    """The tensors that begin at random all the same: a new class, another size."""
    return [name for name in expected_shapes(config) if name not in start and name not in OF_THE_DATA]


def digest_of(tensors: Tensors) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + np.ascontiguousarray(tensors[name]).tobytes())
    return digest.hexdigest()
