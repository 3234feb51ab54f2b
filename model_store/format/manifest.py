"""`manifest.json`: describes a snapshot, and lists the size and sha256 of every file in it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from model_store.errors import DataError, InvalidName, SnapshotError
from model_store.feature_schema import FeatureSchema, type_names
from model_store.format.layout import (
    CENTROIDS,
    FORMAT,
    LIST_ROWS,
    LIST_STARTS,
    MANIFEST,
    MAP,
    MAX_MANIFEST_BYTES,
    OLDEST_FORMAT,
    STATE_TYPES,
    UNIT_EMBEDDINGS,
    Sizes,
    allowed_files,
    checked_model,
    is_node_id_type,
    required_files,
)
from sgformer import ConfigError, ModelConfig

MAX_PROBE_TOLERANCE = 0.1
_SHA256 = re.compile(r"[0-9a-f]{64}")
Types = dict[str, type | tuple[type, ...]]
_TYPES: Types = {
    **dict.fromkeys(("format", "nodes", "edges"), int),
    **dict.fromkeys(("model", "created"), str),
    **dict.fromkeys(("config", "dataset", "training", "scores", "states", "libraries", "files"), dict),
    "node_ids": (str, type(None)),
    "classes": (list, type(None)),
    "probe_tolerance": float,
    "onnx": (dict, type(None)),
}
_TYPES_SINCE_FORMAT_3: Types = {
    "features": (list, type(None)),
    "feature_entries": (int, type(None)),
    "reading": (dict, type(None)),
    "live": (dict, type(None)),
}
_TYPES_SINCE_FORMAT_4: Types = {"embeddings": (dict, type(None))}
_EMBEDDINGS_TYPES: Types = {"map": dict, "index": (dict, type(None))}
_INDEX_TYPES: Types = {"lists": int, "probes": int, "recall": float}
_MAP_TYPES: Types = {"method": str, "explained": list, "mean": list, "components": list}
_STATES_TYPES: Types = {"dtype": str, "error": dict}
_ERROR_TYPES: Types = {"embeddings": float, "logits": float}
_ENTRY_TYPES: Types = {"size": int, "sha256": str}
_LIVE_TYPES: Types = {"graph": str, "sequence": int, "hash": str}
_COPIED_KEYS = (
    *("format", "created", "dataset", "training", "scores", "probe_tolerance", "onnx", "libraries"),
    *("reading", "live", "embeddings"),
)
"""Keys of the JSON object whose values are fields of `Manifest` without a conversion."""


@dataclass(frozen=True)
class FileEntry:
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    model: str
    created: str
    """UTC, ISO 8601."""
    config: ModelConfig
    sizes: Sizes
    classes: tuple[str, ...] | None
    dataset: Mapping[str, Any]
    """Name and content hash of the training data."""
    training: Mapping[str, Any]
    """Regime, settings, seed, parent version: any JSON that training records."""
    scores: Mapping[str, Any]
    states_error: Mapping[str, float]
    """Largest measured difference of embeddings and logits that rounding the states caused; zero for float32."""
    probe_tolerance: float
    """Allowed difference between an engine's answers and the probes', relative to the largest expected number."""
    onnx: Mapping[str, Any] | None
    libraries: Mapping[str, str]
    files: Mapping[str, FileEntry]
    features: FeatureSchema | None = None
    """The names of the features; None if the model was trained on vectors without names."""
    reading: Mapping[str, Any] | None = None
    """How the tables of the user were read, so that a refresh or retraining reads them in the same way: any JSON that
    training records."""
    live: Mapping[str, Any] | None = None
    """`graph`, the id of the live graph that this snapshot contains, and the `sequence` and `hash` of the last change in it.
    None for a snapshot that was not made from a live graph."""
    embeddings: Mapping[str, Any] | None = None
    """How the map of the embeddings was made (`map`), and the index of similar nodes (`index`, or None) with its measured
    recall; None if the snapshot has no embeddings."""
    format: int = FORMAT

    @property
    def snapshot(self) -> str:
        """The identity of the snapshot: the sha256 of the manifest's content."""
        return _content_hash(self._content())

    def to_json(self) -> bytes:
        content = self._content() | {"snapshot": self.snapshot}
        return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"

    def _content(self) -> dict[str, Any]:
        sizes = self.sizes
        content = {
            "format": self.format,
            "model": self.model,
            "created": self.created,
            "config": self.config.to_dict(),
            "nodes": sizes.nodes,
            "edges": sizes.adjacency_entries // 2,
            "node_ids": sizes.node_id_type,
            "classes": None if self.classes is None else list(self.classes),
            "dataset": dict(self.dataset),
            "training": dict(self.training),
            "scores": dict(self.scores),
            "states": {"dtype": sizes.states, "error": dict(self.states_error)},
            "probe_tolerance": self.probe_tolerance,
            "onnx": None if self.onnx is None else dict(self.onnx),
            "libraries": dict(self.libraries),
            "files": {name: asdict(entry) for name, entry in sorted(self.files.items())},
        }
        if self.format < 3:
            return content
        content |= {
            "features": None if self.features is None else self.features.to_json(),
            "feature_entries": sizes.feature_entries,
            "reading": None if self.reading is None else dict(self.reading),
            "live": None if self.live is None else dict(self.live),
        }
        return content | ({"embeddings": self.embeddings} if self.format >= 4 else {})

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """Parses strictly: refuses unknown, missing and repeated keys, wrong types, other formats and a wrong hash.

        Raises:
            SnapshotError: states the reason.
        """
        content = _parse(text)
        expected = f"this version reads the formats {OLDEST_FORMAT} to {FORMAT}"
        is_readable = content.get("format") in range(OLDEST_FORMAT, FORMAT + 1)
        _require(is_readable, f"format is {content.get('format')!r}, {expected}")
        stated_hash = content.pop("snapshot", None)
        try:
            # The hash is checked first, so damage is reported as such; only a forged manifest fails the later checks.
            actual_hash = _content_hash(content)
        except ValueError as error:  # a number that overflows float64, or a lone surrogate
            raise SnapshotError(MANIFEST, f"is not JSON that could be written again: {error}") from error
        _require(stated_hash == actual_hash, "its snapshot hash is not that of its content: it was changed after publishing")
        _check_values(content)
        return cls._from_content(content)

    @classmethod
    def _from_content(cls, content: dict[str, Any]) -> Manifest:
        states, classes = content["states"], content["classes"]
        content = dict.fromkeys(_TYPES_SINCE_FORMAT_3 | _TYPES_SINCE_FORMAT_4) | content
        entries, columns = content["feature_entries"], content["features"]
        lists = _checked_list_count(content["embeddings"])
        sizes = Sizes(content["nodes"], 2 * content["edges"], states["dtype"], content["node_ids"], entries, lists)
        try:
            config = ModelConfig.from_dict(content["config"])
            model = checked_model(content["model"])
            features = None if columns is None else FeatureSchema.from_json(columns)
        except (ConfigError, InvalidName, DataError, OverflowError) as error:
            raise SnapshotError(MANIFEST, str(error)) from error
        files = {name: FileEntry(**entry) for name, entry in content["files"].items()}
        _check_file_names(set(files), config, sizes)
        _check_embeddings(content["embeddings"], set(files), config.embedding_size)
        if classes is not None:
            _require(all(isinstance(name, str) for name in classes), "a class name is not a string")
            _require(len(classes) == config.out_features, f"{len(classes)} class names for {config.out_features} outputs")
        width = config.in_features if features is None else features.width
        _require(width == config.in_features, f"named features of width {width}, the model reads {config.in_features}")
        return cls(
            model=model,
            config=config,
            sizes=sizes,
            classes=None if classes is None else tuple(classes),
            states_error=states["error"],
            files=files,
            features=features,
            **{name: content[name] for name in _COPIED_KEYS},
        )


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise SnapshotError(MANIFEST, reason)


def _parse(text: bytes) -> dict[str, Any]:
    _require(len(text) <= MAX_MANIFEST_BYTES, f"larger than {MAX_MANIFEST_BYTES:,} bytes")
    try:
        content = json.loads(text, object_pairs_hook=_reject_repeated_keys, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise SnapshotError(MANIFEST, f"not JSON: {error}") from error
    _require(isinstance(content, dict), "not a JSON object")
    return content  # type: ignore[no-any-return]  # checked in the line above


def _reject_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key occurs twice")
    return content


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _check_object(value: Any, types: Types, path: str = "") -> None:
    """Checks that a JSON object at `path` has exactly these keys, with values of these types."""
    _require(isinstance(value, dict), f"{path} is {type(value).__name__}, expected an object")
    missing, unknown = sorted(types.keys() - value.keys()), sorted(value.keys() - types.keys())
    _require(not missing, f"{path} lacks {', '.join(missing)}".lstrip())
    _require(not unknown, f"{path} has unknown keys: {_shorten(unknown)}".lstrip())
    for name, expected in types.items():
        type_name = type(value[name]).__name__
        valid = isinstance(value[name], expected) and type_name != "bool"  # Python's bool is an int
        _require(valid, f"{path} {name} is {type_name}, expected {type_names(expected)}".lstrip())


def _check_values(content: dict[str, Any]) -> None:
    types = _TYPES | (_TYPES_SINCE_FORMAT_3 if content["format"] >= 3 else {})
    _check_object(content, types | (_TYPES_SINCE_FORMAT_4 if content["format"] >= 4 else {}))
    nodes, edges, id_type = content["nodes"], content["edges"], content["node_ids"]
    _require(nodes >= 2 and edges >= 0, f"{nodes} nodes and {edges} edges are not a graph, expected 2 or more nodes")
    _require(id_type is None or is_node_id_type(id_type), f"node ids of type {id_type!r}, expected <i8 or |S1 to |S256")
    tolerance, states = content["probe_tolerance"], content["states"]
    expected = f"expected more than 0 and at most {MAX_PROBE_TOLERANCE}"
    _require(0 < tolerance <= MAX_PROBE_TOLERANCE, f"probe_tolerance is {tolerance}, {expected}")
    _check_object(states, _STATES_TYPES, "states")
    _check_object(states["error"], _ERROR_TYPES, "states error")
    _require(states["dtype"] in STATE_TYPES, f"states dtype is {states['dtype']!r}, expected {' or '.join(STATE_TYPES)}")
    entries, live = content.get("feature_entries"), content.get("live")
    _require(entries is None or entries >= 0, f"feature_entries is {entries}")
    if live is not None:
        _check_object({"hash": ""} | live, _LIVE_TYPES, "live")  # the hash may be missing
        _require(live["sequence"] >= 0, f"live sequence is {live['sequence']}, expected 0 or more")
    for name, entry in content["files"].items():
        _check_object(entry, _ENTRY_TYPES, f"the entry of {name!r}")
        _require(entry["size"] >= 0, f"the size of {name!r} is {entry['size']}")
        _require(_SHA256.fullmatch(entry["sha256"]) is not None, f"the sha256 of {name!r} is not 64 hexadecimal digits")


def _check_file_names(names: set[str], config: ModelConfig, sizes: Sizes) -> None:
    """Allows only names that are part of the format, so that no name can point outside the folder."""
    # This check comes first: the list of required names is as long as the number of layers.
    _require(config.layers <= len(names), f"lists {len(names)} files, too few for {config.layers} layers")
    required = required_files(config, sizes)
    missing, unknown = sorted(required - names), sorted(names - allowed_files(config, sizes))
    _require(not missing, f"does not list {_shorten(missing)}")
    _require(not unknown, f"lists unknown files: {_shorten(unknown)}")


def _checked_list_count(content: Any) -> int | None:
    """The number of lists of the index of similar nodes; None if there is no index."""
    if content is None:
        return None
    _check_object(content, _EMBEDDINGS_TYPES, "embeddings")
    if (index := content["index"]) is None:
        return None
    _check_object(index, _INDEX_TYPES, "embeddings index")
    lists, probes, recall = (index[name] for name in _INDEX_TYPES)
    _require(0 < probes <= lists < 2**31, f"embeddings index has {lists} lists and {probes} probes")
    _require(0 <= recall <= 1, f"embeddings index has the recall {recall}")
    return int(lists)


def _check_embeddings(content: Any, files: set[str], width: int) -> None:
    listed = files & {UNIT_EMBEDDINGS, MAP, CENTROIDS, LIST_STARTS, LIST_ROWS}
    expected = 0 if content is None else 2 if content["index"] is None else 5
    names = _shorten(sorted(listed)) or "none"
    _require(len(listed) == expected, f"lists {len(listed)} files of embeddings ({names}), expected {expected}")
    if content is None:
        return
    map_facts = content["map"]
    _check_object(map_facts, _MAP_TYPES, "embeddings map")
    lists = map_facts["mean"], map_facts["explained"], *map_facts["components"]
    are_numbers = all(isinstance(row, list) and all(isinstance(value, float) for value in row) for row in lists)
    _require(are_numbers, "embeddings map has an entry that is not a list of floats")
    lengths, expected_lengths = [len(row) for row in lists], [width, 2, width, width]
    names = "mean, explained and components"
    _require(lengths == expected_lengths, f"embeddings map: {names} have {lengths} numbers, expected {expected_lengths}")


def _shorten(names: list[str]) -> str:
    """Returns at most five names, with control characters escaped: a terminal would act on them."""
    return ", ".join(map(ascii, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _content_hash(content: Any) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
