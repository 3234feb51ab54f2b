"""Which files a snapshot has, and what each array in them must look like (docs/snapshot_format.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgformer import ModelConfig, NodeStates

FORMAT = 2
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
DEGREES = "states/degrees.npy"
LOGITS = "states/logits.npy"

STATE_TYPES = {"float32": "<f4", "float16": "<f2"}
MAX_MANIFEST_BYTES = 16 * 2**20
MAX_TENSOR_FILE_BYTES = 4 * 2**30
"""Of weights, sums and probes, which are read into memory. Arrays are mapped: these cost nothing."""


@dataclass(frozen=True)
class Sizes:
    """All that decides the shapes of a snapshot's arrays, besides the model's configuration."""

    nodes: int
    adjacency_entries: int
    """Every undirected edge twice."""
    states: str
    """A key of STATE_TYPES."""
    node_id_type: str | None
    """numpy's name of the type, where nodes have ids of their own."""


@dataclass(frozen=True)
class ArraySpec:
    shape: tuple[int, ...]
    dtype: str
    """In numpy's notation, byte order included."""

    @property
    def data_bytes(self) -> int:
        size = int(np.dtype(self.dtype).itemsize)
        for length in self.shape:
            size *= length
        return size


def array_specs(config: ModelConfig, sizes: Sizes) -> dict[str, ArraySpec]:
    rows = ArraySpec((sizes.nodes, config.hidden), STATE_TYPES[sizes.states])
    specs = {state_file(name): rows for name in state_names(config)}
    specs[LOGITS] = ArraySpec((sizes.nodes, config.out_features), "<f4")
    specs[DEGREES] = ArraySpec((sizes.nodes,), "<i4" if sizes.nodes <= _MAX_INT32 else "<i8")
    specs[INDPTR] = ArraySpec((sizes.nodes + 1,), "<i8")
    specs[INDICES] = ArraySpec((sizes.adjacency_entries,), "<i4" if sizes.nodes <= _MAX_INT32 else "<i8")
    if sizes.node_id_type is not None:
        specs[NODE_IDS] = ArraySpec((sizes.nodes,), sizes.node_id_type)
        specs[NODE_ORDER] = ArraySpec((sizes.nodes,), "<i8")
    return specs


def state_names(config: ModelConfig) -> list[str]:
    """The arrays of `sgformer.summarize`, by its own names. Where the GCN reads Z0, `inputs` is also its layer 0."""
    first = 1 if config.gnn_input == "shared" else 0
    layers = [f"layer_{number}" for number in range(first, config.layers + 1)]
    return ["inputs", *layers, *(f"aggregate_{number}" for number in range(1, config.layers))]


def states_from(config: ModelConfig, arrays: Mapping[str, NDArray[Any]]) -> NodeStates:
    """The arrays of `state_names`, put together."""
    first = arrays["inputs"] if config.gnn_input == "shared" else arrays["layer_0"]
    layers = (arrays[f"layer_{number}"] for number in range(1, config.layers + 1))
    aggregates = (arrays[f"aggregate_{number}"] for number in range(1, config.layers))
    return NodeStates(arrays["inputs"], (first, *layers), tuple(aggregates))


def state_file(name: str) -> str:
    return f"states/{name}.npy"


def required_files(config: ModelConfig, sizes: Sizes) -> set[str]:
    return {WEIGHTS, SUMS, PROBES, *array_specs(config, sizes)}


OPTIONAL_FILES = frozenset({ONNX, REPORT})
_MAX_INT32 = np.iinfo(np.int32).max


def is_node_id_type(name: Any) -> bool:
    """Whole numbers, or UTF-8 of one width up to 256 bytes."""
    if name == "<i8":
        return True
    return isinstance(name, str) and re.fullmatch(r"\|S[1-9][0-9]{0,2}", name) is not None and int(name[2:]) <= 256
