"""`graph.json`: describes a graph folder, and lists the shape, type, size and sha256 of every array in it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, get_args

from model_store import DataError, FeatureSchema
from model_store.format.layout import ArraySpec, is_node_id_type
from sgformer.config import Task
from sgformer.edge_list import EdgeListCounts

FORMAT = 1
MANIFEST = "graph.json"
MAX_MANIFEST_BYTES = 16 * 2**20
INDPTR, INDICES = "indptr.npy", "indices.npy"
FEATURES = "features.npy"
FEATURES_INDPTR, FEATURES_INDICES, FEATURES_VALUES = "features_indptr.npy", "features_indices.npy", "features_values.npy"
NODE_IDS, NODE_ORDER = "node_ids.npy", "node_order.npy"
LABELS, SPLIT = "labels.npy", "split.npy"
SPARSE = (FEATURES_INDPTR, FEATURES_INDICES, FEATURES_VALUES)
TYPES = {
    INDPTR: ("<i8",),
    INDICES: ("<i4", "<i8"),
    FEATURES: ("<f4", "<f8"),
    FEATURES_INDPTR: ("<i8",),
    FEATURES_INDICES: ("<i4", "<i8"),
    FEATURES_VALUES: ("<f4", "<f8"),
    NODE_ORDER: ("<i8",),
    LABELS: ("<i8", "<f4"),
    SPLIT: ("|i1",),
}
"""The types that an array may have. Node ids are <i8 or |S1 to |S256."""
_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("format", "nodes", "edges", "width"), int),
    **dict.fromkeys(("created", "source"), str),
    **dict.fromkeys(("arrays", "given", "libraries"), dict),
    "task": (str, type(None)),
    **dict.fromkeys(("classes", "features"), (list, type(None))),
    "reading": (dict, type(None)),
    "notes": list,
    "missing_cells": (dict, type(None)),
}


@dataclass(frozen=True)
class ArrayEntry:
    shape: tuple[int, ...]
    dtype: str
    size: int
    """Of the file, in bytes."""
    sha256: str

    @property
    def spec(self) -> ArraySpec:
        return ArraySpec(self.shape, self.dtype)


@dataclass(frozen=True)
class GraphManifest:
    created: str
    """UTC, ISO 8601."""
    source: str
    """What was imported: tables, graph.npz or ogb."""
    nodes: int
    edges: int
    """Undirected."""
    width: int
    """The number of features of a node."""
    arrays: Mapping[str, ArrayEntry]
    """By file name."""
    given: EdgeListCounts
    """Counts of the imported edge list, before it was made undirected."""
    task: Task | None
    """None if there are no labels."""
    classes: tuple[str, ...] | None
    features: FeatureSchema | None
    reading: Mapping[str, Any] | None
    """How tables were read; None if the source is not tables."""
    notes: tuple[str, ...]
    missing_cells: Mapping[str, int] | None
    """As in `LabelledGraph`."""
    libraries: Mapping[str, str]
    format: int = FORMAT

    def to_json(self) -> bytes:
        content = self._content()
        return json.dumps(content | {"id": _hash(content)}, indent=1, ensure_ascii=False).encode() + b"\n"

    def _content(self) -> dict[str, Any]:
        content = {name: getattr(self, name) for name in _FIELDS}
        content["arrays"] = {name: asdict(entry) for name, entry in sorted(self.arrays.items())}
        content["given"] = asdict(self.given)
        content["features"] = self.features and self.features.to_json()
        plain: dict[str, Any] = json.loads(json.dumps(content, allow_nan=False))
        return plain

    @classmethod
    def from_json(cls, text: bytes) -> GraphManifest:
        """Raises DataError: names the field that is wrong."""
        content = _checked_content(text)
        arrays = {name: _entry(name, fields) for name, fields in content["arrays"].items()}
        try:
            given = EdgeListCounts(**content["given"])
        except TypeError as error:
            raise DataError(f"{MANIFEST}: given: {error}") from error
        features = content["features"] and FeatureSchema.from_json(content["features"])
        classes = None if content["classes"] is None else tuple(content["classes"])
        plain = {"arrays": arrays, "given": given, "features": features, "classes": classes}
        return cls(**content | plain | {"notes": tuple(content["notes"])})


def _hash(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()  # a damaged file may have a lone surrogate


def _checked_content(text: bytes) -> dict[str, Any]:
    try:
        content = json.loads(text) if len(text) <= MAX_MANIFEST_BYTES else None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{MANIFEST} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise DataError(f"{MANIFEST} is not a JSON object of at most {MAX_MANIFEST_BYTES:,} bytes")
    if content.get("format") != FORMAT:
        raise DataError(f"{MANIFEST} has format {content.get('format')}, this version reads {FORMAT}: import the data again")
    identity = content.pop("id", None)
    for name, kind in _FIELDS.items():
        if not isinstance(content.get(name), kind) or isinstance(content[name], bool):
            raise DataError(f"{MANIFEST}: {name} is missing or of a wrong type")
    if unknown := content.keys() - _FIELDS.keys():
        raise DataError(f"{MANIFEST} has the unknown field {min(unknown)!a}")
    if identity != _hash(content):
        raise DataError(f"{MANIFEST} does not have its own hash: it was changed after the import")
    if content["task"] not in (None, *get_args(Task)):
        raise DataError(f"{MANIFEST}: task is {content['task']!a}")
    return content


def _entry(name: str, fields: Any) -> ArrayEntry:
    if name not in TYPES and name != NODE_IDS:
        raise DataError(f"{MANIFEST} lists the unknown array {name!a}")
    try:
        entry = ArrayEntry(**fields | {"shape": tuple(fields["shape"])})
        valid = entry.dtype in TYPES[name] if name in TYPES else is_node_id_type(entry.dtype)
        whole = all(type(number) is int and number >= 0 for number in (*entry.shape, entry.size))
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise DataError(f"{MANIFEST}: {name} has wrong fields: {error}") from error
    if not (valid and whole and 1 <= len(entry.shape) <= 2 and isinstance(entry.sha256, str)):
        raise DataError(f"{MANIFEST}: {name} has a shape or type that it cannot have")
    return entry
