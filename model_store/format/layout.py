"""Names in the store: models, versions, the files of a snapshot, and the shape and type of each array."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.errors import InvalidName
from sgformer import ModelConfig, NodeStates

FORMAT, OLDEST_FORMAT = 4, 2
MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
SUMS = "sums.safetensors"
PROBES = "probes.safetensors"
ONNX = "model.onnx"
REPORT = "report.html"
INDPTR = "graph/indptr.npy"
INDICES = "graph/indices.npy"
NODE_IDS = "graph/node_ids.npy"
NODE_ORDER = "graph/node_order.npy"
FEATURES = "graph/features.npy"
FEATURES_INDPTR = "graph/features_indptr.npy"
FEATURES_INDICES = "graph/features_indices.npy"
FEATURES_VALUES = "graph/features_values.npy"
LABELS = "graph/labels.npy"
SPLIT = "graph/split.npy"
DEGREES = "states/degrees.npy"
LOGITS = "states/logits.npy"
UNIT_EMBEDDINGS = "states/unit_embeddings.npy"
MAP = "states/map.npy"
CENTROIDS = "states/similar_centroids.npy"
LIST_STARTS = "states/similar_starts.npy"
LIST_ROWS = "states/similar_rows.npy"

STATE_TYPES = {"float32": "<f4", "float16": "<f2"}
MAX_MANIFEST_BYTES = 16 * 2**20
MAX_TENSOR_FILE_BYTES = 4 * 2**30
"""Limit for weights, sums and probes, which are read into memory. Array files are memory-mapped and have no limit."""

_MODEL_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_VERSION_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
_TEXT_ID_TYPE = re.compile(r"\|S[1-9][0-9]{0,2}")
_MAX_INT32 = np.iinfo(np.int32).max
OPTIONAL_FILES = frozenset({ONNX, REPORT})


def checked_model(name: str) -> str:
    """Returns the name of a model if it is a safe folder name: no path separator, no leading dot. Raises InvalidName."""
    if not isinstance(name, str) or not is_model(name):
        raise InvalidName(
            f"a model cannot be called {name!r}: expected 1 to 64 of a-z, 0-9, '-' and '_', beginning with a letter or digit"
        )
    return name


def checked_version(version: int | str) -> int:
    """Returns a version as a number, from a number or its digits. Raises InvalidName."""
    if isinstance(version, bool) or not is_version(str(version)):
        raise InvalidName(f"{version!r} is not a version: versions are the whole numbers 1, 2, 3 ...")
    return int(version)


def is_model(name: str) -> bool:
    return _MODEL_NAME.fullmatch(name) is not None


def is_version(name: str) -> bool:
    return _VERSION_NUMBER.fullmatch(name) is not None


@dataclass(frozen=True)
class Sizes:
    """With the model configuration, determines the shape and type of every array of a snapshot."""

    nodes: int
    adjacency_entries: int
    """Twice the number of undirected edges."""
    states: str
    """A key of STATE_TYPES."""
    node_id_type: str | None
    """numpy's name of the type, or None if the nodes have no ids."""
    feature_entries: int | None = None
    """The number of stored values of sparse raw features; None for dense features, or if there are none."""
    similar_lists: int | None = None
    """The number of lists of the index of similar nodes; None if there is no index."""


@dataclass(frozen=True)
class ArraySpec:
    shape: tuple[int, ...]
    dtype: str
    """In numpy's notation, with the byte order."""

    @property
    def data_bytes(self) -> int:
        return math.prod(self.shape) * int(np.dtype(self.dtype).itemsize)


def array_specs(config: ModelConfig, sizes: Sizes) -> dict[str, ArraySpec]:
    """Returns the shape and type of every npy file that a snapshot must have, by file name."""
    index_type = _index_type(sizes.nodes)
    states = ArraySpec((sizes.nodes, config.hidden), STATE_TYPES[sizes.states])
    specs = {state_file(name): states for name in state_names(config)}
    specs[LOGITS] = ArraySpec((sizes.nodes, config.out_features), "<f4")
    specs[DEGREES] = ArraySpec((sizes.nodes,), index_type)
    specs[INDPTR] = ArraySpec((sizes.nodes + 1,), "<i8")
    specs[INDICES] = ArraySpec((sizes.adjacency_entries,), index_type)
    if sizes.node_id_type is not None:
        specs[NODE_IDS] = ArraySpec((sizes.nodes,), sizes.node_id_type)
        specs[NODE_ORDER] = ArraySpec((sizes.nodes,), "<i8")
    if sizes.feature_entries is not None:
        specs[FEATURES_INDPTR] = ArraySpec((sizes.nodes + 1,), "<i8")
        specs[FEATURES_INDICES] = ArraySpec((sizes.feature_entries,), _index_type(config.in_features))
        specs[FEATURES_VALUES] = ArraySpec((sizes.feature_entries,), "<f4")
    return specs


def optional_specs(config: ModelConfig, sizes: Sizes) -> dict[str, ArraySpec]:
    """Returns the shape and type of every npy file that a snapshot may have or lack, by file name."""
    single = config.task == "multiclass" or (config.task == "regression" and config.out_features == 1)
    label_shape = (sizes.nodes,) if single else (sizes.nodes, config.out_features)
    specs = {LABELS: ArraySpec(label_shape, "<i8" if config.task == "multiclass" else "<f4")}
    specs[SPLIT] = ArraySpec((sizes.nodes,), "|i1")
    specs[UNIT_EMBEDDINGS] = ArraySpec((sizes.nodes, config.embedding_size), "<f4")
    specs[MAP] = ArraySpec((sizes.nodes, 2), "<f4")
    if (lists := sizes.similar_lists) is not None:
        specs[CENTROIDS] = ArraySpec((lists, config.embedding_size), "<f4")
        specs[LIST_STARTS] = ArraySpec((lists + 1,), "<i8")
        specs[LIST_ROWS] = ArraySpec((sizes.nodes,), _index_type(sizes.nodes))
    if sizes.feature_entries is None:
        specs[FEATURES] = ArraySpec((sizes.nodes, config.in_features), "<f4")
    return specs


def _index_type(count: int) -> str:
    """The type of the numbers 0 to count - 1."""
    return "<i4" if count <= _MAX_INT32 else "<i8"


def state_names(config: ModelConfig) -> list[str]:
    """Returns the names that `sgformer.summarize` gives its arrays. If the GCN reads Z0, layer 0 is `inputs`."""
    first = 1 if config.gnn_input == "shared" else 0
    layers = [f"layer_{number}" for number in range(first, config.layers + 1)]
    return ["inputs", *layers, *(f"aggregate_{number}" for number in range(1, config.layers))]


def states_from(config: ModelConfig, arrays: Mapping[str, NDArray[Any]]) -> NodeStates:
    """Returns the node states whose arrays `state_names` lists."""
    first = arrays["inputs"] if config.gnn_input == "shared" else arrays["layer_0"]
    layers = (arrays[f"layer_{number}"] for number in range(1, config.layers + 1))
    aggregates = (arrays[f"aggregate_{number}"] for number in range(1, config.layers))
    return NodeStates(arrays["inputs"], (first, *layers), tuple(aggregates))


def state_file(name: str) -> str:
    return f"states/{name}.npy"


def required_files(config: ModelConfig, sizes: Sizes) -> set[str]:
    return {WEIGHTS, SUMS, PROBES, *array_specs(config, sizes)}


def allowed_files(config: ModelConfig, sizes: Sizes) -> set[str]:
    """Every file besides the manifest that a snapshot may have."""
    return required_files(config, sizes) | OPTIONAL_FILES | optional_specs(config, sizes).keys()


def is_node_id_type(name: Any) -> bool:
    """True for int64 and for UTF-8 of a fixed width up to 256 bytes, in numpy's notation."""
    is_text = isinstance(name, str) and _TEXT_ID_TYPE.fullmatch(name) is not None
    return name == "<i8" or (is_text and int(name[2:]) <= 256)
