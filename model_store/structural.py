"""Features for graphs that have none, made from the edges: `--structural degree`.

The feature of a node is log2(1 + number of neighbours). That of a new node is computed from its edges in the request, unless
the request has it, so that the answer is exact. The features of known nodes stay as they were at training, also if new nodes
become their neighbours; `refresh` computes them again.

Random features and eigenvectors are not offered: a random feature of a new node says nothing, and an eigenvector of the
graph with the new node differs from the stored one in every row, so that no answer would be exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from model_store.feature_schema import FeatureColumn, FeatureSchema
from sgformer import Adjacency

Structural = Literal["degree"]
DEGREE = "log2_degree"
SCHEMA = FeatureSchema((FeatureColumn(DEGREE, "number"),))
HINT = "--structural degree makes a feature of the number of neighbours"


def structural_features(adjacency: Adjacency) -> NDArray[np.float32]:
    """The features of all nodes, (N, 1)."""
    return degree_features(adjacency.all_degrees())[:, None]


def degree_features(degrees: Any) -> NDArray[np.float32]:
    return np.asarray(np.log2(1 + np.asarray(degrees)), dtype=np.float32)


def is_structural(reading: Mapping[str, Any] | None) -> bool:
    """True if the features of a model were made from the edges. `reading`: that of its manifest."""
    return reading is not None and reading.get("structural") == "degree"
