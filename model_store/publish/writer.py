"""Writes a snapshot into an empty folder: from weights and a graph, by one streamed full-graph forward into its files."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from model_store.errors import ProbeError, StoreError
from model_store.format import npy
from model_store.format.files import sha256_of_all
from model_store.format.layout import (
    DEGREES,
    INDICES,
    INDPTR,
    LOGITS,
    MANIFEST,
    NODE_IDS,
    NODE_ORDER,
    ONNX,
    PROBES,
    REPORT,
    WEIGHTS,
    ArraySpec,
    Sizes,
    array_specs,
    required_files,
    state_file,
)
from model_store.format.manifest import FileEntry, Manifest
from model_store.format.node_ids import NodeIds
from model_store.format.probes import Probes
from model_store.format.sums_and_logits import write_logits, write_sums
from model_store.format.tensors import write_tensors
from model_store.publish import onnx_head as request_head
from model_store.publish.probe_writer import full_forward_probes
from model_store.publish.rounding import check_finite, rounded_states, rounding_error
from model_store.snapshot import Snapshot
from sgformer import Graph, ModelConfig, Summary, summarize

StatesType = Literal["float32", "float16"]
PROBE_TOLERANCE = {"float32": 1e-4, "float16": 1e-2}
"""float32 forwards of one model in two orders differ by some 1e-5; half precision keeps three digits."""
LIBRARIES = ("sgformer-serving", "torch", "numpy", "safetensors", "onnx")


@dataclass(frozen=True)
class Contents:
    """What a snapshot is made of. Everything after `graph` is for people and programs that read the manifest."""

    config: ModelConfig
    weights: Mapping[str, NDArray[Any]]
    """As `SGFormer.weights()` gives them."""
    graph: Graph
    node_ids: NodeIds | None = None
    classes: tuple[str, ...] | None = None
    dataset: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[str, Any] = field(default_factory=dict)
    report: str | None = None
    """A self-contained page, kept as `report.html`."""


def write_snapshot(
    folder: Path,
    model: str,
    contents: Contents,
    *,
    states: StatesType = "float32",
    onnx: bool = True,
    device: str = "cpu",
) -> Manifest:
    """Writes every file, the manifest last, and asks the result its own probes.

    Memory stays bounded: all that is as large as the graph goes through memory-mapped files in `folder`.

    Raises:
        ProbeError: the written snapshot does not answer as the full-graph forward does.
        OSError: e.g. the disk is full; space is claimed before it is written to.
    """
    if states not in PROBE_TOLERANCE:
        raise StoreError(f"states are {states!r}, expected one of {', '.join(PROBE_TOLERANCE)}")
    contents = _checked(contents)
    sizes = _sizes(contents, states)
    specs = array_specs(contents.config, sizes)
    scratch = folder / "scratch"
    scratch.mkdir()
    summary = _summarized(folder if states == "float32" else scratch, contents, device)
    check_finite(contents.config, summary.states)
    stored = summary.states if states == "float32" else rounded_states(folder, contents.config, summary.states, specs)
    _write_graph(folder, contents, specs)
    weights = {name: _as_float(array) for name, array in contents.weights.items()}
    write_tensors(folder / WEIGHTS, weights)
    write_sums(folder, contents.config, sizes, weights, summary.sums)
    write_logits(folder / LOGITS, specs[LOGITS], contents.config, weights, summary)
    probes = full_forward_probes(contents.config, weights, contents.graph, summary, scratch)
    write_tensors(folder / PROBES, probes.to_tensors())
    if contents.report is not None:
        (folder / REPORT).write_text(contents.report, encoding="utf-8")
    about_onnx = _exported(folder, contents.config, weights, summary, probes) if onnx else None
    error = rounding_error(contents.config, weights, contents.graph, summary, stored)
    del summary, stored
    shutil.rmtree(scratch)
    manifest = Manifest(
        model=model,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        config=contents.config,
        sizes=sizes,
        classes=contents.classes,
        dataset=contents.dataset,
        training=contents.training,
        scores=contents.scores,
        states_error=error,
        probe_tolerance=PROBE_TOLERANCE[states],
        onnx=about_onnx,
        libraries=_libraries(),
        files=_entries(folder, contents, sizes, onnx),
    )
    (folder / MANIFEST).write_bytes(manifest.to_json())
    _check(folder, manifest)
    return manifest


def _sizes(contents: Contents, states: str) -> Sizes:
    graph, ids = contents.graph, contents.node_ids
    if ids is not None and len(ids.arrays[0]) != graph.num_nodes:
        raise StoreError(f"{len(ids.arrays[0])} node ids for {graph.num_nodes} nodes")
    if contents.classes is not None and len(contents.classes) != contents.config.out_features:
        raise StoreError(f"{len(contents.classes)} class names for {contents.config.out_features} outputs")
    return Sizes(graph.num_nodes, len(graph.adjacency.indices), states, None if ids is None else ids.dtype)


def _summarized(folder: Path, contents: Contents, device: str) -> Summary:
    def allocate(name: str, shape: tuple[int, int], dtype: np.dtype[Any]) -> NDArray[Any]:
        return npy.create(folder / state_file(name), ArraySpec(shape, dtype.str))

    with np.errstate(all="ignore"):  # what overflows is named by `check_finite`, with the node
        return summarize(contents.config, contents.weights, contents.graph, device=device, allocate=allocate)


def _write_graph(folder: Path, contents: Contents, specs: Mapping[str, ArraySpec]) -> None:
    adjacency = contents.graph.adjacency
    arrays = {INDPTR: adjacency.indptr, INDICES: adjacency.indices, DEGREES: adjacency.all_degrees()}
    if contents.node_ids is not None:
        arrays[NODE_IDS], arrays[NODE_ORDER] = contents.node_ids.arrays
    for name, array in arrays.items():
        npy.write(folder / name, array, specs[name])


def _as_float(array: NDArray[Any]) -> NDArray[Any]:
    array = np.asarray(array)
    return array if array.dtype == np.float64 else array.astype(np.float32, copy=False)


def _exported(
    folder: Path, config: ModelConfig, weights: Mapping[str, NDArray[Any]], summary: Summary, probes: Probes
) -> dict[str, Any]:
    request_head.export_request_head(config, weights, folder / ONNX)
    return request_head.describe(folder / ONNX, config, weights, summary, probes)


def _checked(contents: Contents) -> Contents:
    """The same, with everything that goes into the manifest as JSON would give it back; what cannot go is refused now."""
    plain: dict[str, Any] = {}
    for name in ("classes", "dataset", "training", "scores"):
        try:
            text = json.dumps(getattr(contents, name), allow_nan=False, ensure_ascii=False)
            plain[name] = json.loads(text.encode())
        except (TypeError, ValueError) as error:
            raise StoreError(f"{name} cannot be written as JSON: {error}") from error
    plain["classes"] = None if plain["classes"] is None else tuple(plain["classes"])
    return replace(contents, **plain)


def _entries(folder: Path, contents: Contents, sizes: Sizes, onnx: bool) -> dict[str, FileEntry]:
    names = required_files(contents.config, sizes)
    names |= ({ONNX} if onnx else set()) | ({REPORT} if contents.report is not None else set())
    return {name: FileEntry((folder / name).stat().st_size, digest) for name, digest in sha256_of_all(folder, names).items()}


def _libraries() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _check(folder: Path, manifest: Manifest) -> None:
    with Snapshot.open(folder, verify="sizes") as snapshot:
        try:
            snapshot.replay()
        except ProbeError as error:
            if manifest.sizes.states == "float16":
                raise ProbeError(f"{error}; half-precision states lose too much here, publish with float32") from error
            raise
