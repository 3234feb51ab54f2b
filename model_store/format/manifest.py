"""`manifest.json`: what a snapshot is, and the size and sha256 of every file in it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from model_store.errors import InvalidName, SnapshotError
from model_store.format.layout import (
    FORMAT,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    OPTIONAL_FILES,
    STATE_TYPES,
    Sizes,
    is_node_id_type,
    required_files,
)
from model_store.format.names import checked_model
from sgformer import ConfigError, ModelConfig

MAX_PROBE_TOLERANCE = 0.1
_SHA256 = re.compile(r"[0-9a-f]{64}")


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
    """Name and content hash of what the model was trained on, as training knows it."""
    training: Mapping[str, Any]
    """Regime, settings, seed, parent version: free for training to fill."""
    scores: Mapping[str, Any]
    states_error: Mapping[str, float]
    """Largest differences of embeddings and logits that rounding the states made, as measured; zero for float32."""
    probe_tolerance: float
    """How far an engine's answers may be from the probes', as a share of the largest one."""
    onnx: Mapping[str, Any] | None
    libraries: Mapping[str, str]
    files: Mapping[str, FileEntry]

    @property
    def snapshot(self) -> str:
        """The identity of the content: the sha256 of everything that the manifest says."""
        return hashlib.sha256(_canonical(self._content())).hexdigest()

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
            "files": {name: {"size": entry.size, "sha256": entry.sha256} for name, entry in sorted(self.files.items())},
        }

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """Strict: unknown, missing and repeated keys, wrong types, other formats and a wrong `snapshot` are refused.

        Raises:
            SnapshotError: with the reason.
        """
        content = _parsed(text)
        if content.get("format") != FORMAT:
            raise SnapshotError(MANIFEST, f"format is {content.get('format')!r}, this version reads format {FORMAT}")
        stated = content.pop("snapshot", None)
        try:
            # First of all, so that only a forger can reach what is checked below.
            found = hashlib.sha256(_canonical(content)).hexdigest()
        except ValueError as error:  # a number beyond all floats, half a surrogate pair
            raise SnapshotError(MANIFEST, f"is not JSON that could be written again: {error}") from error
        if stated != found:
            raise SnapshotError(MANIFEST, "its snapshot hash is not that of its content: it was changed after publishing")
        _check_types(content)
        return cls._from_content(content)

    @classmethod
    def _from_content(cls, content: dict[str, Any]) -> Manifest:
        states = content["states"]
        sizes = Sizes(content["nodes"], 2 * content["edges"], states["dtype"], content["node_ids"])
        try:
            config = ModelConfig.from_dict(content["config"])
            model = checked_model(content["model"])
        except (ConfigError, InvalidName, OverflowError) as error:
            raise SnapshotError(MANIFEST, str(error)) from error
        if config.layers > len(content["files"]):  # before their names are made up
            raise SnapshotError(MANIFEST, f"lists {len(content['files'])} files, too few for {config.layers} layers")
        files = {name: FileEntry(entry["size"], entry["sha256"]) for name, entry in content["files"].items()}
        _check_names(set(files), config, sizes)
        _check_classes(content["classes"], config)
        return cls(
            model=model,
            config=config,
            sizes=sizes,
            classes=None if content["classes"] is None else tuple(content["classes"]),
            states_error=states["error"],
            files=files,
            **{name: content[name] for name in _PLAIN},
        )


_PLAIN = {field.name for field in fields(Manifest)} - {"model", "config", "sizes", "classes", "states_error", "files"}
_TYPES: dict[str, type | tuple[type, ...]] = {
    "format": int,
    "model": str,
    "created": str,
    "config": dict,
    "nodes": int,
    "edges": int,
    "node_ids": (str, type(None)),
    "classes": (list, type(None)),
    "dataset": dict,
    "training": dict,
    "scores": dict,
    "states": dict,
    "probe_tolerance": float,
    "onnx": (dict, type(None)),
    "libraries": dict,
    "files": dict,
}


def _parsed(text: bytes) -> dict[str, Any]:
    if len(text) > MAX_MANIFEST_BYTES:
        raise SnapshotError(MANIFEST, f"larger than {MAX_MANIFEST_BYTES:,} bytes")
    try:
        content = json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise SnapshotError(MANIFEST, f"not JSON: {error}") from error
    if not isinstance(content, dict):
        raise SnapshotError(MANIFEST, "not a JSON object")
    return content


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key is there twice")
    return content


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _check_types(content: dict[str, Any]) -> None:
    if missing := sorted(_TYPES.keys() - content.keys()):
        raise SnapshotError(MANIFEST, f"lacks {', '.join(missing)}")
    if unknown := sorted(content.keys() - _TYPES.keys()):
        raise SnapshotError(MANIFEST, f"has unknown keys: {_listed(unknown)}")
    for name, kind in _TYPES.items():
        if not isinstance(content[name], kind) or isinstance(content[name], bool):
            raise SnapshotError(MANIFEST, f"{name} is {type(content[name]).__name__}, which it cannot be")
    if content["nodes"] < 2 or content["edges"] < 0:
        raise SnapshotError(MANIFEST, f"{content['nodes']} nodes and {content['edges']} edges are no graph")
    if content["node_ids"] is not None and not is_node_id_type(content["node_ids"]):
        raise SnapshotError(MANIFEST, f"node ids of type {content['node_ids']!r}, expected <i8 or |S1 to |S256")
    if not 0 < content["probe_tolerance"] <= MAX_PROBE_TOLERANCE:
        raise SnapshotError(
            MANIFEST, f"probe_tolerance is {content['probe_tolerance']}, at most {MAX_PROBE_TOLERANCE} is a check"
        )
    _check_states(content["states"])
    for name, entry in content["files"].items():
        _check_entry(name, entry)


def _check_states(states: dict[str, Any]) -> None:
    good = set(states) == {"dtype", "error"} and isinstance(states["dtype"], str) and states["dtype"] in STATE_TYPES
    if not good or not isinstance(states["error"], dict) or set(states["error"]) != {"embeddings", "logits"}:
        raise SnapshotError(MANIFEST, f"states are {states!r}, expected a dtype ({' or '.join(STATE_TYPES)}) and its error")
    if not all(isinstance(error, float) for error in states["error"].values()):
        raise SnapshotError(MANIFEST, f"the error of the states is {states['error']!r}, expected numbers")


def _check_entry(name: str, entry: Any) -> None:
    if not isinstance(entry, dict) or set(entry) != {"size", "sha256"}:
        raise SnapshotError(MANIFEST, f"the entry of {name!r} is not a size and a sha256")
    if type(entry["size"]) is not int or entry["size"] < 0:
        raise SnapshotError(MANIFEST, f"the size of {name!r} is {entry['size']!r}")
    if not isinstance(entry["sha256"], str) or not _SHA256.fullmatch(entry["sha256"]):
        raise SnapshotError(MANIFEST, f"the sha256 of {name!r} is not 64 hexadecimal digits")


def _check_names(names: set[str], config: ModelConfig, sizes: Sizes) -> None:
    """Only names that the format knows: so no name can lead out of the folder."""
    required = required_files(config, sizes)
    if missing := sorted(required - names):
        raise SnapshotError(MANIFEST, f"does not list {_listed(missing)}")
    if unknown := sorted(names - required - OPTIONAL_FILES):
        raise SnapshotError(MANIFEST, f"lists unknown files: {_listed(unknown)}")


def _check_classes(classes: list[Any] | None, config: ModelConfig) -> None:
    if classes is None:
        return
    if not all(isinstance(name, str) for name in classes):
        raise SnapshotError(MANIFEST, "a class name is not a text")
    if len(classes) != config.out_features:
        raise SnapshotError(MANIFEST, f"{len(classes)} class names for {config.out_features} outputs")


def _listed(names: list[str]) -> str:
    """Not more of them than a message should hold, and nothing in them that a terminal would act on."""
    return ", ".join(map(ascii, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _canonical(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
