"""Operations that change a graph, by node id, and their form in the log: a JSON object."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import orjson

from sgformer import GraphError, SparseRows
from sgformer.features import FeatureRows, checked_features

NodeId = int | str
Kind = Literal["add_node", "set_features", "set_label", "remove_node", "add_edge", "remove_edge"]
SparseFeatures = dict[str, list[Any]]
"""{"indices": [...], "values": [...]}: the features that are not zero."""
Features = list[float] | SparseFeatures
Label = int | float | list[float | None] | None
"""A class, a value, or one number per label (None: unknown); None: the node has no label."""


@dataclass(frozen=True, slots=True)
class Operation:
    """`_FIELDS` lists the fields that each kind uses; all other fields keep their defaults."""

    op: Kind
    id: NodeId = ""
    features: Features = field(default_factory=list)
    neighbors: tuple[NodeId, ...] = ()
    label: Label = None
    source: NodeId = ""
    target: NodeId = ""

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _FIELDS[self.op]}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Operation:
        if "neighbors" in content:
            content = content | {"neighbors": tuple(content["neighbors"])}
        return cls(**content)


_FIELDS: dict[Kind, tuple[str, ...]] = {
    "add_node": ("op", "id", "features", "neighbors", "label"),
    "set_features": ("op", "id", "features"),
    "set_label": ("op", "id", "label"),
    "remove_node": ("op", "id"),
    "add_edge": ("op", "source", "target"),
    "remove_edge": ("op", "source", "target"),
}


class Change(NamedTuple):
    """What a record of the log holds: the operations of one request, which are applied together."""

    operations: list[Operation]
    request: str = ""
    """The sha256 of the request, by which a request that is sent again is recognised."""
    skipped: int = 0
    """The number of operations of the request that `upsert` turned into an update, or into nothing."""

    def to_payload(self) -> bytes:
        operations = [operation.to_json() for operation in self.operations]
        return orjson.dumps({"request": self.request, "skipped": self.skipped, "operations": operations})

    @classmethod
    def from_payload(cls, payload: bytes) -> Change:
        content = orjson.loads(payload)
        operations = [Operation.from_json(operation) for operation in content["operations"]]
        return cls(operations, content["request"], content["skipped"])


def feature_rows(features: Features, width: int) -> FeatureRows:
    """The features of an operation as one row.

    Raises GraphError (a ValueError) for a wrong width, an index out of range or twice, or a value that is not finite.
    """
    if isinstance(features, dict):
        indices, values = np.array(features["indices"], dtype=np.int64), np.array(features["values"], dtype=np.float64)
        order = np.argsort(indices)
        rows: FeatureRows = SparseRows(np.array([0, len(indices)]), indices[order], values[order], width)
    else:
        rows = np.array([features], dtype=np.float64)
    checked: FeatureRows = checked_features(rows, width, GraphError)
    return checked
