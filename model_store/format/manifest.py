"""`manifest.json`: describes a snapshot, and lists the size and sha256 of every file in it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from model_store.errors import InvalidName, SnapshotError
from model_store.format.layout import (
    FORMAT,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    OPTIONAL_FILES,
    STATE_TYPES,
    Sizes,
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
_STATES_TYPES: Types = {"dtype": str, "error": dict}
_ERROR_TYPES: Types = {"embeddings": float, "logits": float}
_ENTRY_TYPES: Types = {"size": int, "sha256": str}
_COPIED_KEYS = ("created", "dataset", "training", "scores", "probe_tolerance", "onnx", "libraries")
"""Keys of the JSON object that are fields of `Manifest` as they are."""


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

    @property
    def snapshot(self) -> str:
        """The identity of the snapshot: the sha256 of the manifest's content."""
        return _content_hash(self._content())

    def to_json(self) -> bytes:
        content = self._content() | {"snapshot": self.snapshot}
        return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"

    def _content(self) -> dict[str, Any]:
        sizes = self.sizes
        return {
            "format": FORMAT,
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

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """Parses strictly: refuses unknown, missing and repeated keys, wrong types, other formats and a wrong hash.

        Raises:
            SnapshotError: states the reason.
        """
        content = _parse(text)
        _require(content.get("format") == FORMAT, f"format is {content.get('format')!r}, this version reads format {FORMAT}")
        stated_hash = content.pop("snapshot", None)
        try:
            # The hash comes before all other checks: only a forged manifest can reach those.
            actual_hash = _content_hash(content)
        except ValueError as error:  # a number beyond all floats, or a lone surrogate
            raise SnapshotError(MANIFEST, f"is not JSON that could be written again: {error}") from error
        _require(stated_hash == actual_hash, "its snapshot hash is not that of its content: it was changed after publishing")
        _check_values(content)
        return cls._from_content(content)

    @classmethod
    def _from_content(cls, content: dict[str, Any]) -> Manifest:
        states, classes = content["states"], content["classes"]
        sizes = Sizes(content["nodes"], 2 * content["edges"], states["dtype"], content["node_ids"])
        try:
            config = ModelConfig.from_dict(content["config"])
            model = checked_model(content["model"])
        except (ConfigError, InvalidName, OverflowError) as error:
            raise SnapshotError(MANIFEST, str(error)) from error
        files = {name: FileEntry(**entry) for name, entry in content["files"].items()}
        _check_file_names(set(files), config, sizes)
        if classes is not None:
            _require(all(isinstance(name, str) for name in classes), "a class name is not a string")
            _require(len(classes) == config.out_features, f"{len(classes)} class names for {config.out_features} outputs")
        return cls(
            model=model,
            config=config,
            sizes=sizes,
            classes=None if classes is None else tuple(classes),
            states_error=states["error"],
            files=files,
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
        raise ValueError("a key is there twice")
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
        _require(valid, f"{path} {name} is {type_name}, which it cannot be".lstrip())


def _check_values(content: dict[str, Any]) -> None:
    _check_object(content, _TYPES)
    nodes, edges, id_type = content["nodes"], content["edges"], content["node_ids"]
    _require(nodes >= 2 and edges >= 0, f"{nodes} nodes and {edges} edges are no graph")
    _require(id_type is None or is_node_id_type(id_type), f"node ids of type {id_type!r}, expected <i8 or |S1 to |S256")
    tolerance, states = content["probe_tolerance"], content["states"]
    expected = f"expected more than 0 and at most {MAX_PROBE_TOLERANCE}"
    _require(0 < tolerance <= MAX_PROBE_TOLERANCE, f"probe_tolerance is {tolerance}, {expected}")
    _check_object(states, _STATES_TYPES, "states")
    _check_object(states["error"], _ERROR_TYPES, "states error")
    _require(states["dtype"] in STATE_TYPES, f"states dtype is {states['dtype']!r}, expected {' or '.join(STATE_TYPES)}")
    for name, entry in content["files"].items():
        _check_object(entry, _ENTRY_TYPES, f"the entry of {name!r}")
        _require(entry["size"] >= 0, f"the size of {name!r} is {entry['size']}")
        _require(_SHA256.fullmatch(entry["sha256"]) is not None, f"the sha256 of {name!r} is not 64 hexadecimal digits")


def _check_file_names(names: set[str], config: ModelConfig, sizes: Sizes) -> None:
    """Allows only names that are part of the format, so that no name can point outside the folder."""
    # This check comes first: the list of required names is as long as the number of layers.
    _require(config.layers <= len(names), f"lists {len(names)} files, too few for {config.layers} layers")
    required = required_files(config, sizes)
    missing, unknown = sorted(required - names), sorted(names - required - OPTIONAL_FILES)
    _require(not missing, f"does not list {_shorten(missing)}")
    _require(not unknown, f"lists unknown files: {_shorten(unknown)}")


def _shorten(names: list[str]) -> str:
    """Returns at most five names, with control characters escaped: a terminal would act on them."""
    return ", ".join(map(ascii, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _content_hash(content: Any) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
