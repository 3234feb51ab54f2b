"""Writes a snapshot into an empty folder. One streamed full-graph forward writes the states straight into its files."""

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
from model_store.format import layout, npy
from model_store.format.files import sha256_of_all
from model_store.format.layout import ArraySpec, Sizes
from model_store.format.manifest import FileEntry, Manifest
from model_store.format.node_ids import NodeIds
from model_store.format.sums_and_logits import write_logits, write_sums
from model_store.format.tensors import write_tensors
from model_store.publish import onnx_head
from model_store.publish.probe_writer import full_forward_probes
from model_store.publish.rounding import check_finite, rounding_error, write_rounded_states
from model_store.snapshot import Snapshot
from sgformer import Graph, ModelConfig, Summary, summarize

StatesType = Literal["float32", "float16"]
PROBE_TOLERANCE = {"float32": 1e-4, "float16": 1e-2}
"""Two float32 forwards that sum in different orders differ by about 1e-5; half precision keeps three digits."""
METADATA = ("classes", "dataset", "training", "scores")
LIBRARIES = ("sgformer-serving", "torch", "numpy", "safetensors", "onnx")


@dataclass(frozen=True)
class Contents:
    """What a snapshot is made of. Everything after `graph` describes it to readers of the manifest."""

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


def write_snapshot(
    folder: Path,
    model: str,
    contents: Contents,
    *,
    states: StatesType = "float32",
    onnx: bool = True,
    device: str = "cpu",
) -> Manifest:
    """Writes every file, the manifest last, and replays the probes on the result.

    Arrays as large as the graph are memory-mapped files in `folder`, so memory stays bounded.

    Raises:
        ProbeError: the written snapshot does not answer as the full-graph forward does.
        OSError: e.g. the disk is full; space is allocated before it is written to.
    """
    if states not in PROBE_TOLERANCE:
        raise StoreError(f"states are {states!r}, expected one of {', '.join(PROBE_TOLERANCE)}")
    contents = _as_json_returns_it(contents)
    config, sizes = contents.config, _checked_sizes(contents, states)
    specs = layout.array_specs(config, sizes)
    weights = {name: _as_float(array) for name, array in contents.weights.items()}
    scratch = folder / "scratch"
    scratch.mkdir()
    summary = _summarize_into(folder if states == "float32" else scratch, contents, device)
    check_finite(config, summary.states)
    stored = summary.states if states == "float32" else write_rounded_states(folder, config, summary.states, specs)
    _write_graph(folder, contents, specs)
    write_tensors(folder / layout.WEIGHTS, weights)
    write_sums(folder, config, sizes, weights, summary.sums)
    write_logits(folder / layout.LOGITS, specs[layout.LOGITS], config, weights, summary)
    probes = full_forward_probes(config, weights, contents.graph, summary, scratch)
    write_tensors(folder / layout.PROBES, probes.to_tensors())
    if contents.report is not None:
        page = contents.report(summary) if callable(contents.report) else contents.report
        (folder / layout.REPORT).write_text(page, encoding="utf-8")
    about_onnx = None
    if onnx:
        onnx_head.export_request_head(config, weights, folder / layout.ONNX)
        about_onnx = onnx_head.describe(folder / layout.ONNX, config, weights, summary, probes)
    manifest = Manifest(
        model=model,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        config=config,
        sizes=sizes,
        **{name: getattr(contents, name) for name in METADATA},
        states_error=rounding_error(config, weights, contents.graph, summary, stored),
        probe_tolerance=PROBE_TOLERANCE[states],
        onnx=about_onnx,
        libraries=_library_versions(),
        files=_file_entries(folder, contents, sizes, onnx),
    )
    del summary, stored
    shutil.rmtree(scratch)
    (folder / layout.MANIFEST).write_bytes(manifest.to_json())
    _replay_probes(folder, manifest)
    return manifest


def _checked_sizes(contents: Contents, states: str) -> Sizes:
    graph, ids = contents.graph, contents.node_ids
    if ids is not None and len(ids.arrays[0]) != graph.num_nodes:
        raise StoreError(f"{len(ids.arrays[0])} node ids for {graph.num_nodes} nodes")
    if contents.classes is not None and len(contents.classes) != contents.config.out_features:
        raise StoreError(f"{len(contents.classes)} class names for {contents.config.out_features} outputs")
    return Sizes(graph.num_nodes, len(graph.adjacency.indices), states, None if ids is None else ids.dtype)


def _summarize_into(folder: Path, contents: Contents, device: str) -> Summary:
    def allocate(name: str, shape: tuple[int, int], dtype: np.dtype[Any]) -> NDArray[Any]:
        return npy.create(folder / layout.state_file(name), ArraySpec(shape, dtype.str))

    with np.errstate(all="ignore"):  # `check_finite` reports an overflow, with the node
        return summarize(contents.config, contents.weights, contents.graph, device=device, allocate=allocate)


def _write_graph(folder: Path, contents: Contents, specs: Mapping[str, ArraySpec]) -> None:
    adjacency = contents.graph.adjacency
    arrays = {layout.INDPTR: adjacency.indptr, layout.INDICES: adjacency.indices, layout.DEGREES: adjacency.all_degrees()}
    if contents.node_ids is not None:
        arrays[layout.NODE_IDS], arrays[layout.NODE_ORDER] = contents.node_ids.arrays
    for name, array in arrays.items():
        npy.write(folder / name, array, specs[name])


def _as_float(array: NDArray[Any]) -> NDArray[Any]:
    array = np.asarray(array)
    return array if array.dtype == np.float64 else array.astype(np.float32, copy=False)


def _as_json_returns_it(contents: Contents) -> Contents:
    """The contents with all metadata as JSON returns it. Raises StoreError for metadata that is not JSON."""
    plain: dict[str, Any] = {}
    for name in METADATA:
        try:
            text = json.dumps(getattr(contents, name), allow_nan=False, ensure_ascii=False)
            plain[name] = json.loads(text.encode())
        except (TypeError, ValueError) as error:
            raise StoreError(f"{name} cannot be written as JSON: {error}") from error
    plain["classes"] = None if plain["classes"] is None else tuple(plain["classes"])
    return replace(contents, **plain)


def _file_entries(folder: Path, contents: Contents, sizes: Sizes, onnx: bool) -> dict[str, FileEntry]:
    names = layout.required_files(contents.config, sizes)
    names |= ({layout.ONNX} if onnx else set()) | ({layout.REPORT} if contents.report is not None else set())
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
