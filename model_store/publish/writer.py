"""Writes a snapshot into an empty folder. One streamed full-graph forward writes the states to files: float32 states in
place, float16 states by way of scratch files.
"""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from model_store.errors import ProbeError, StoreError
from model_store.feature_schema import FeatureSchema
from model_store.format import layout, npy
from model_store.format.files import sha256_of_all
from model_store.format.layout import Sizes
from model_store.format.manifest import FileEntry, Manifest
from model_store.format.node_ids import NodeIds
from model_store.format.raw_data import raw_arrays
from model_store.format.sums_and_logits import write_logits, write_sums
from model_store.format.tensors import write_tensors
from model_store.publish import onnx_head
from model_store.publish.embedding_files import EmbeddingFiles
from model_store.publish.probe_writer import full_forward_probes
from model_store.publish.rounding import check_finite, rounding_error, write_rounded_states
from model_store.publish.shared_forward import summarize_into
from model_store.snapshot import Snapshot
from sgformer import Graph, ModelConfig, SparseRows, Summary

StatesType = Literal["float32", "float16"]
PROBE_TOLERANCE = {"float32": 1e-4, "float16": 1e-2}
"""Two float32 forwards that sum in different orders differ by about 1e-5; half precision keeps three digits."""
METADATA = ("classes", "dataset", "training", "scores", "reading", "live")
LIBRARIES = ("sgformer-serving", "torch", "numpy", "safetensors", "onnx")


@dataclass(frozen=True)
class Contents:
    """The contents of a snapshot. The fields after `graph` are optional: `node_ids`, `labels`, `split` and `report` become
    files, the others are metadata in the manifest.
    """

    config: ModelConfig
    weights: Mapping[str, NDArray[Any]]
    """As `SGFormer.weights()` gives them."""
    graph: Graph
    node_ids: NodeIds | None = None
    classes: tuple[str, ...] | None = None
    dataset: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[str, Any] = field(default_factory=dict)
    report: str | Callable[[Summary], str] | None = None
    """The page `report.html`, or a function that makes it from the result of the full-graph forward."""
    labels: Any = None
    """By task. Multiclass: (N,) class numbers, -1 without a label. Multi-label: (N, C) of 0, 1 and NaN. Regression: (N,) or
    (N, C) numbers, NaN without a label."""
    split: NDArray[np.integer[Any]] | None = None
    """For every node 0 (training), 1 (validation), 2 (test) or -1 (none of them)."""
    features: FeatureSchema | None = None
    reading: Mapping[str, Any] | None = None
    live: Mapping[str, Any] | None = None
    """As `Manifest.live`."""


def write_snapshot(
    folder: Path,
    model: str,
    contents: Contents,
    *,
    states: StatesType = "float32",
    onnx: bool = True,
    raw_data: bool = True,
    device: str = "cpu",
) -> Manifest:
    """Writes every file, the manifest last, and replays the probes on the result.

    Arrays as large as the graph are memory-mapped files in `folder`, so memory stays bounded.

    Args:
        raw_data: False leaves out features, labels and split.

    Raises:
        StoreError: the contents do not fit together, metadata is not JSON, the model has no finite state or logit for a
            node, or half precision cannot hold a state.
        ProbeError: the written snapshot does not answer as the full-graph forward does.
        OSError: e.g. the disk is full; space is allocated before it is written to.
    """
    if states not in PROBE_TOLERANCE:
        raise StoreError(f"states are {states!r}, expected one of {', '.join(PROBE_TOLERANCE)}")
    contents = _round_trip_metadata(contents)
    sizes = _checked_sizes(contents, states, raw_data)
    scratch = folder / "scratch"
    scratch.mkdir()
    manifest = _write_files(folder, scratch, model, contents, sizes, onnx=onnx, raw_data=raw_data, device=device)
    shutil.rmtree(scratch)
    (folder / layout.MANIFEST).write_bytes(manifest.to_json())
    _replay_probes(folder, manifest)
    return manifest


def _write_files(
    folder: Path, scratch: Path, model: str, contents: Contents, sizes: Sizes, *, onnx: bool, raw_data: bool, device: str
) -> Manifest:
    """Writes every file but the manifest, which it returns."""
    config, states = contents.config, sizes.states
    specs = layout.array_specs(config, sizes) | layout.optional_specs(config, sizes)
    arrays = _graph_arrays(contents)
    if raw_data:
        arrays |= raw_arrays(config, sizes, contents.graph, contents.labels, contents.split)
    weights = {name: _as_float(array) for name, array in contents.weights.items()}
    summary = summarize_into(folder if states == "float32" else scratch, config, contents.weights, contents.graph, device)
    check_finite(config, summary.states)
    stored = summary.states if states == "float32" else write_rounded_states(folder, config, summary.states, specs)
    for name, array in arrays.items():
        npy.write(folder / name, array, specs[name])
    write_tensors(folder / layout.WEIGHTS, weights)
    write_sums(folder, config, sizes, weights, summary.sums)
    embeddings = EmbeddingFiles(folder, specs)
    write_logits(folder / layout.LOGITS, specs[layout.LOGITS], config, weights, summary, embeddings.add)
    about_embeddings, sizes = embeddings.finish(config, sizes)
    probes = full_forward_probes(config, weights, contents.graph, summary, scratch)
    write_tensors(folder / layout.PROBES, probes.to_tensors())
    _write_report(folder, contents, summary)
    about_onnx = onnx_head.write(folder / layout.ONNX, config, weights, summary, probes) if onnx else None
    return Manifest(
        model=model,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        config=config,
        sizes=sizes,
        **{name: getattr(contents, name) for name in METADATA},
        features=contents.features,
        states_error=rounding_error(config, weights, contents.graph, summary, stored),
        probe_tolerance=PROBE_TOLERANCE[states],
        onnx=about_onnx,
        embeddings=about_embeddings,
        libraries=_library_versions(),
        files=_file_entries(folder, layout.allowed_files(config, sizes)),
    )


def _write_report(folder: Path, contents: Contents, summary: Summary) -> None:
    if contents.report is not None:
        page = contents.report(summary) if callable(contents.report) else contents.report
        (folder / layout.REPORT).write_text(page, encoding="utf-8")


def _checked_sizes(contents: Contents, states: str, raw_data: bool) -> Sizes:
    graph, ids, config = contents.graph, contents.node_ids, contents.config
    if ids is not None and len(ids.arrays[0]) != graph.num_nodes:
        raise StoreError(f"{len(ids.arrays[0])} node ids for {graph.num_nodes} nodes")
    if contents.classes is not None and len(contents.classes) != config.out_features:
        raise StoreError(f"{len(contents.classes)} class names for {config.out_features} outputs")
    if contents.features is not None and contents.features.width != config.in_features:
        raise StoreError(f"named features of width {contents.features.width}, the model reads {config.in_features}")
    entries = len(graph.features.values) if raw_data and isinstance(graph.features, SparseRows) else None
    return Sizes(graph.num_nodes, len(graph.adjacency.indices), states, None if ids is None else ids.dtype, entries)


def _graph_arrays(contents: Contents) -> dict[str, NDArray[Any]]:
    adjacency = contents.graph.adjacency
    arrays = {layout.INDPTR: adjacency.indptr, layout.INDICES: adjacency.indices, layout.DEGREES: adjacency.all_degrees()}
    if contents.node_ids is not None:
        arrays[layout.NODE_IDS], arrays[layout.NODE_ORDER] = contents.node_ids.arrays
    return arrays


def _as_float(array: NDArray[Any]) -> NDArray[Any]:
    array = np.asarray(array)
    return array if array.dtype == np.float64 else array.astype(np.float32, copy=False)


def _round_trip_metadata(contents: Contents) -> Contents:
    """Returns the contents with all metadata encoded as JSON and decoded again, as a reader of the manifest gets it.

    Raises StoreError for metadata that is not JSON.
    """
    schema = contents.features
    metadata = {name: getattr(contents, name) for name in METADATA} | {"features": schema and schema.to_json()}
    plain: dict[str, Any] = {}
    for name, value in metadata.items():
        try:
            plain[name] = json.loads(json.dumps(value, allow_nan=False, ensure_ascii=False).encode())
        except (TypeError, ValueError) as error:
            raise StoreError(f"{name} cannot be written as JSON: {error}") from error
    plain["classes"] = None if plain["classes"] is None else tuple(plain["classes"])
    return replace(contents, **plain | {"features": schema})


def _file_entries(folder: Path, allowed: set[str]) -> dict[str, FileEntry]:
    names = {name for name in allowed if (folder / name).exists()}
    return {name: FileEntry((folder / name).stat().st_size, digest) for name, digest in sha256_of_all(folder, names).items()}


def _library_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def _replay_probes(folder: Path, manifest: Manifest) -> None:
    with Snapshot.open(folder, verify="sizes") as snapshot:
        try:
            snapshot.replay()
        except ProbeError as error:
            if manifest.sizes.states == "float16":
                raise ProbeError(f"{error}; half-precision states lose too much here, publish with float32") from error
            raise
