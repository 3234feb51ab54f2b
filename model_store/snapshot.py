"""An open snapshot: verified, memory-mapped, and protected from pruning until it is closed."""

from __future__ import annotations

import hashlib
import os
import stat
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from model_store.errors import SnapshotError, UnknownVersion
from model_store.format import layout, npy, raw_data
from model_store.format.files import (
    open_regular_file,
    read_descriptor,
    read_regular_file,
    sha256_of_all,
    translate_os_errors,
)
from model_store.format.layout import MANIFEST, MAX_MANIFEST_BYTES
from model_store.format.manifest import Manifest
from model_store.format.node_ids import NodeIds
from model_store.format.probes import Probes
from model_store.format.structure import check_structure
from model_store.format.sums_and_logits import read_sums
from model_store.format.tensors import read_tensors
from model_store.versions.locks import READER_SECONDS, SharedLock
from sgformer import (
    Adjacency,
    Answers,
    AttentionSums,
    ExtendedAnswers,
    InferenceModel,
    NewNodes,
    SgformerError,
    UnknownNodeError,
    extend,
)
from sgformer.features import FeatureRows, SparseRows
from sgformer.nearest.lists import InvertedLists
from sgformer.request_time.extension import Mode
from sgformer.request_time.inference import checked_ids

FOLDERS = ("graph", "states")
Verify = Literal["full", "sizes"]
HASH_MISMATCH = "the sha256 differs from the manifest: the file was changed or damaged"


class Snapshot:
    """Open a snapshot with `Snapshot.open`. Close it, or use it as a context manager.

    `known` and `extended` compute answers with numpy.

    States, adjacency, logits, ids and raw data are memory maps, whose pages all processes share through the page cache. They
    stay valid while they are referenced. Weights, sums and probes are copies in private memory.
    """

    def __init__(self, folder: Path, manifest: Manifest, lock: SharedLock) -> None:
        self.folder, self.manifest, self._lock = folder, manifest, lock
        config, sizes = manifest.config, manifest.sizes
        arrays = _map_arrays(folder, manifest)
        self.weights = read_tensors(folder, layout.WEIGHTS)
        with _naming_file(layout.WEIGHTS):
            self.model = InferenceModel(config, self.weights)
        states = {name: arrays[layout.state_file(name)] for name in layout.state_names(config)}
        self.states = layout.states_from(config, states)
        self.sums: AttentionSums = read_sums(folder, config, sizes, self.weights)
        self.adjacency = Adjacency(arrays[layout.INDPTR], arrays[layout.INDICES])
        self._logits = arrays[layout.LOGITS]
        has_ids = layout.NODE_IDS in arrays
        self.node_ids = NodeIds(arrays[layout.NODE_IDS], arrays[layout.NODE_ORDER]) if has_ids else None
        self._features = raw_data.features_from(arrays, config.in_features)
        self.labels: NDArray[Any] | None = arrays.get(layout.LABELS)
        self.split: NDArray[np.int8] | None = arrays.get(layout.SPLIT)
        self.unit_embeddings: NDArray[np.float32] | None = arrays.get(layout.UNIT_EMBEDDINGS)
        self.map: NDArray[np.float32] | None = arrays.get(layout.MAP)
        self.similar_lists: InvertedLists | None = None
        if layout.CENTROIDS in arrays:
            self.similar_lists = InvertedLists(
                *(arrays[name] for name in (layout.CENTROIDS, layout.LIST_STARTS, layout.LIST_ROWS))
            )
        with _naming_file(layout.PROBES):
            self.probes = Probes.from_tensors(read_tensors(folder, layout.PROBES), config, sizes.nodes)

    @classmethod
    def open(cls, folder: Path, verify: Verify = "full", lock_seconds: float = READER_SECONDS) -> Snapshot:
        """Checks a snapshot and opens it.

        Args:
            verify: "full" also checks the sha256 of every file and the structure of the graph, which reads every byte.
                "sizes" skips these two, for a version that this machine has verified before.
            lock_seconds: time limit of the wait for the shared lock.

        Raises:
            SnapshotError: the content is wrong. The error names the file and the reason.
            UnknownVersion: the folder does not exist.
            StoreUnavailable: the operating system refused to read or lock a file, or memory ran out.
        """
        if verify not in ("full", "sizes"):
            raise ValueError(f"verify is {verify!r}, expected full or sizes")
        lock, manifest = _lock_manifest(folder, lock_seconds)
        try:
            with translate_os_errors():
                _check_files(folder, manifest)
                if verify == "full":
                    _check_digests(folder, manifest)
                    # A separate mapping, so that the pages that this check reads do not stay resident.
                    check_structure(_map_arrays(folder, manifest), manifest.config)
                return cls(folder, manifest, lock)
        except BaseException:
            lock.release()
            raise

    @property
    def id(self) -> str:
        """The content hash, which every answer names."""
        return self.manifest.snapshot

    @property
    def rounding_error(self) -> float | None:
        """Largest measured difference of an embedding or logit from the full-precision answer; None for float32 states.

        Logits of known nodes have no rounding error: they are computed before the states are rounded, and stored as float32.
        """
        return None if self.manifest.sizes.states == "float32" else max(self.manifest.states_error.values())

    @property
    def onnx_path(self) -> Path | None:
        return self.folder / layout.ONNX if layout.ONNX in self.manifest.files else None

    def known(self, nodes: NDArray[np.int64]) -> Answers:
        """Returns the answers for rows of the graph."""
        return Answers(self.model.known(self.states, self.sums, nodes).embeddings, self.known_logits(nodes))

    def known_logits(self, nodes: NDArray[np.int64]) -> NDArray[np.float32]:
        """Returns the stored logits of the full-graph forward for rows of the graph; every engine uses these."""
        return np.asarray(self._logits.take(checked_ids(nodes, self.states.num_nodes), axis=0))

    def extended(self, new: NewNodes, mode: Mode = "exact", max_recompute: int | None = None) -> ExtendedAnswers:
        """Returns the answers for nodes that are not in the graph."""
        return extend(self.model, self.states, self.sums, self.adjacency, new, mode, max_recompute)

    def raw_features(self, rows: NDArray[np.int64] | None = None) -> FeatureRows | None:
        """Returns the features of rows of the graph as training read them, before the transform of the model.

        Without `rows`, the features of every node, memory-mapped. None if the snapshot has no raw features.
        """
        if self._features is None or rows is None:
            return self._features
        rows = checked_ids(rows, self.states.num_nodes)
        return self._features.take(rows) if isinstance(self._features, SparseRows) else self._features[rows]

    @property
    def has_text_ids(self) -> bool:
        """Whether the ids of the nodes are strings, and not whole numbers."""
        return self.node_ids is not None and self.node_ids.are_text

    def row(self, node_id: int | str) -> int | None:
        """`rows` for one id, faster; None if it is not in the graph."""
        if self.node_ids is None:
            return node_id if type(node_id) is int and 0 <= node_id < self.states.num_nodes else None
        try:
            return int(self.node_ids.rows([node_id])[0])
        except UnknownNodeError:
            return None

    def rows(self, ids: Sequence[int | str]) -> NDArray[np.int64]:
        """Returns the rows of nodes by their ids, which are the row numbers if the snapshot stores no ids.

        Raises:
            UnknownNodeError: names the first id that is not in the graph.
        """
        if self.node_ids is not None:
            return self.node_ids.rows(ids)
        count = self.states.num_nodes
        try:
            rows = np.frombuffer(array("q", ids), dtype=np.int64)  # type: ignore[type-var]  # it raises TypeError for strings
            if np.maximum.reduce(rows.view(np.uint64)) < count:  # as unsigned, a negative number is a large one
                return rows
        except (TypeError, OverflowError):
            pass
        unknown = next(node for node in ids if type(node) is not int or not 0 <= node < count)
        raise UnknownNodeError(f"node {unknown!r} is not in the graph, expected ids from 0 to {count - 1}", unknown)

    def ids(self, rows: Iterable[int]) -> list[int | str]:
        """The inverse of `rows`."""
        return list(rows) if self.node_ids is None else self.node_ids.names(rows)

    def replay(self) -> dict[str, float]:
        """Replays the probes with numpy and returns the error of each probe by name.

        Raises:
            ProbeError: an error exceeds the tolerance.
        """
        return self.probes.replay(self, self.manifest.probe_tolerance)

    def close(self) -> None:
        """Ends the protection from pruning. Arrays that are still referenced stay readable."""
        self._lock.release()

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_manifest(folder: Path) -> Manifest:
    """Reads the manifest and checks its own hash, but not its files. Takes no lock, so it never waits."""
    return Manifest.from_json(read_regular_file(folder, MANIFEST, MAX_MANIFEST_BYTES + 1))


def read_listed_file(folder: Path, manifest: Manifest, name: str) -> bytes:
    """Reads one file that the manifest lists and checks its hash. Takes no lock."""
    entry = manifest.files[name]
    content = read_regular_file(folder, name, entry.size + 1)
    if len(content) != entry.size or hashlib.sha256(content).hexdigest() != entry.sha256:
        raise SnapshotError(name, HASH_MISMATCH)
    return content


def _lock_manifest(folder: Path, seconds: float) -> tuple[SharedLock, Manifest]:
    """Takes the shared lock of the manifest, and checks that pruning has not moved the folder away meanwhile."""
    handle = open_regular_file(folder, MANIFEST)
    with translate_os_errors(MANIFEST):
        lock = SharedLock(handle, folder / MANIFEST, seconds)
        try:
            if not _is_same_file(handle, folder / MANIFEST):
                raise UnknownVersion(f"version {folder.name} of {folder.parent.name} was removed")
            return lock, Manifest.from_json(read_descriptor(handle, MANIFEST, MAX_MANIFEST_BYTES + 1))
        except BaseException:
            lock.release()
            raise


def _is_same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _map_arrays(folder: Path, manifest: Manifest) -> dict[str, NDArray[Any]]:
    optional = layout.optional_specs(manifest.config, manifest.sizes)
    specs = layout.array_specs(manifest.config, manifest.sizes)
    specs |= {name: spec for name, spec in optional.items() if name in manifest.files}
    return {name: npy.open_mapped(folder, name, spec) for name, spec in specs.items()}


def _check_files(folder: Path, manifest: Manifest) -> None:
    """Checks that the folder holds exactly the listed files, each a regular file of its listed size."""
    sizes = dict(_list_files(folder))
    if missing := sorted(manifest.files.keys() - sizes.keys()):
        raise SnapshotError(missing[0], "is missing")
    if extra := sorted(sizes.keys() - manifest.files.keys() - {MANIFEST}):
        raise SnapshotError(extra[0], "is not in the manifest")
    for name, entry in manifest.files.items():
        if sizes[name] != entry.size:
            raise SnapshotError(name, f"is {sizes[name]:,} bytes long, the manifest says {entry.size:,}")


def _list_files(folder: Path, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yields every file below the folder with its size. Refuses other kinds of files, and unknown folders."""
    with os.scandir(folder) as entries:
        for entry in entries:
            name, status = prefix + entry.name, entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                if name not in FOLDERS:
                    raise SnapshotError(name, "is a folder that is not part of the format")
                yield from _list_files(Path(entry.path), f"{name}/")
            elif stat.S_ISREG(status.st_mode):
                yield name, status.st_size
            else:
                raise SnapshotError(name, "is not a regular file (it is a link, a pipe or a device)")


def _check_digests(folder: Path, manifest: Manifest) -> None:
    for name, digest in sha256_of_all(folder, manifest.files).items():
        if digest != manifest.files[name].sha256:
            raise SnapshotError(name, HASH_MISMATCH)


@contextmanager
def _naming_file(name: str) -> Iterator[None]:
    """Converts errors of the model and of the probes to a SnapshotError with the file name."""
    try:
        yield
    except (SgformerError, KeyError, ValueError) as error:
        raise SnapshotError(name, str(error)) from error
