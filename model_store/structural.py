"""Features for graphs that have none, made from the edges: `--structural degree` or `--structural random`.

`degree`: log2(1 + number of neighbours).
`random`: the same, and PROJECTIONS random projections of the list of neighbours. Every id has a code of PROJECTIONS signs, a
hash of the id. The projections of a node are the sum of the codes of its neighbours, divided by the square root of their
number: nodes with the same neighbours have equal projections, and nodes without common neighbours have unrelated ones.

The features of a new node are computed from its neighbours in the request, unless the request has them, so that the answer
is exact. The features of known nodes stay as they were at training, even if new nodes become their neighbours; `refresh`
computes them again. Eigenvectors are not offered: a new edge changes all of them, even their signs and their order, and the
weights, trained on the old eigenvectors, would not fit the new ones.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.feature_schema import FeatureColumn, FeatureSchema
from model_store.format.node_ids import NodeIds
from model_store.run_settings import Structural
from sgformer import Adjacency

DEGREE = "log2_degree"
PROJECTIONS = 64
_NAMES = tuple(f"neighbors_{number}" for number in range(PROJECTIONS))
SCHEMAS: dict[Structural, FeatureSchema] = {
    "degree": FeatureSchema((FeatureColumn(DEGREE, "number"),)),
    "random": FeatureSchema(tuple(FeatureColumn(name, "number") for name in (DEGREE, *_NAMES))),
}
HINT = "--structural degree makes a feature of the number of neighbours, --structural random also of which they are"


class StructuralFeatures:
    """The features of all nodes, (N, D). A slice of rows is computed when it is read."""

    def __init__(self, kind: Structural, adjacency: Adjacency, ids: NodeIds | None) -> None:
        """`ids`: None if requests use row numbers."""
        self._adjacency = adjacency
        self._codes = None
        if kind == "random":
            rows = range(adjacency.num_nodes)
            self._codes = _codes(rows if ids is None else ids.names(rows))
        self.shape = (adjacency.num_nodes, SCHEMAS[kind].width)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> NDArray[np.float32]:
        nodes = np.arange(len(self))[rows]
        degrees = self._adjacency.degrees(nodes)
        features = np.empty((len(nodes), self.shape[1]), dtype=np.float32)
        features[:, 0] = _log2_degree(degrees)
        if self._codes is not None:
            owners = np.repeat(np.arange(len(nodes)), degrees)
            codes = self._codes[self._adjacency.neighbors(nodes)]
            for place in range(PROJECTIONS):  # all at once would need 64 times as much memory
                bits = codes[:, place // 8] >> place % 8 & 1
                positive = np.bincount(owners, weights=bits, minlength=len(nodes))
                features[:, 1 + place] = _projection(positive, degrees)
        return features


def feature_maker(kind: Structural | None) -> Callable[[Adjacency, NodeIds | None], NDArray[np.float32]] | None:
    """A function that makes the features of a graph; None for a graph that has features."""
    return None if kind is None else lambda adjacency, ids: StructuralFeatures(kind, adjacency, ids)[:]


def values_of_neighbors(kind: Structural, neighbors: Collection[int | str]) -> dict[str, float]:
    """The features of a node by name. `neighbors`: the ids of its distinct neighbours."""
    values = {DEGREE: float(_log2_degree(len(neighbors)))}
    if kind == "random":
        bits = np.unpackbits(_codes(neighbors), axis=1, bitorder="little")
        projections = _projection(bits.sum(axis=0), len(neighbors))
        values.update(zip(_NAMES, projections.tolist(), strict=True))
    return values


def structural_of(reading: Mapping[str, Any] | None) -> Structural | None:
    """How the features of a model were made from the edges; None if they were not. `reading`: see `Manifest`."""
    return None if reading is None else reading.get("structural")


def _log2_degree(degrees: Any) -> NDArray[np.float32]:
    return np.asarray(np.log2(1 + np.asarray(degrees)), dtype=np.float32)


def _projection(positive: NDArray[Any], degrees: Any) -> NDArray[np.float32]:
    """`positive`: the number of neighbours whose code has the sign + at a place."""
    sums = 2.0 * positive - degrees
    return np.asarray(sums / np.sqrt(np.maximum(degrees, 1)), dtype=np.float32)


def _codes(ids: Iterable[int | str]) -> NDArray[np.uint8]:
    """The signs of each id as bits, (n, PROJECTIONS / 8): splitmix64 of its CRC-32, the same on every machine."""
    mixed = np.array([zlib.crc32(str(node).encode("utf-8", "surrogatepass")) for node in ids], dtype=np.uint64)
    mixed += np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed.astype("<u8").view(np.uint8).reshape(-1, PROJECTIONS // 8)
