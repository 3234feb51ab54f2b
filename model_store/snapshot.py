"""One immutable version on disk, opened: verified, memory-mapped, and held against pruning until it is closed."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from model_store.errors import SnapshotError, UnknownVersion
from model_store.format import npy
from model_store.format.digests import sha256_of_all
from model_store.format.files import blaming_the_system, open_ordinary, read_open, read_ordinary
from model_store.format.layout import (
    INDICES,
    INDPTR,
    LOGITS,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    NODE_IDS,
    NODE_ORDER,
    ONNX,
    PROBES,
    WEIGHTS,
    array_specs,
    state_file,
    state_names,
    states_from,
)
from model_store.format.manifest import Manifest
from model_store.format.node_ids import NodeIds
from model_store.format.probes import Probes
from model_store.format.structure import check_structure
from model_store.format.sums_file import read_sums
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
    extend,
)
from sgformer.request_time.extension import Mode
from sgformer.request_time.inference import checked_ids

FOLDERS = ("graph", "states")
Verify = Literal["full", "sizes"]
CHANGED = "its sha256 is not the one in the manifest: it was changed or damaged"


class Snapshot:
    """Open one with `Snapshot.open` and close it; a `with` block does both. It answers, on numpy, as it is.

    The arrays are memory maps: they cost no private memory, and stay valid until the last reference to them is gone.
    """

    def __init__(self, folder: Path, manifest: Manifest, lock: SharedLock) -> None:
        self.folder = folder
        self.manifest = manifest
        self._lock = lock
        config = manifest.config
        self._arrays = _mapped(folder, manifest)
        self.weights = read_tensors(folder, WEIGHTS)
        with _blaming(WEIGHTS):
            self.model = InferenceModel(config, self.weights)
        self.states = states_from(config, {name: self._arrays[state_file(name)] for name in state_names(config)})
        self.sums: AttentionSums = read_sums(folder, config, manifest.sizes, self.weights)
        self.adjacency = Adjacency(self._arrays[INDPTR], self._arrays[INDICES])
        self._logits = self._arrays[LOGITS]
        self.node_ids = self._node_ids()
        with _blaming(PROBES):
            self.probes = Probes.from_tensors(read_tensors(folder, PROBES), config, manifest.sizes.nodes)

    @classmethod
    def open(cls, folder: Path, verify: Verify = "full", lock_seconds: float = READER_SECONDS) -> Snapshot:
        """Opens a snapshot, or refuses it.

        Args:
            verify: "full" reads every byte: sha256 of every file, and the structure of the graph. "sizes" leaves that out,
                for a version that this machine has verified before. Everything else is checked both times.
            lock_seconds: limit of the wait for the shared lock.

        Raises:
            SnapshotError: the content is wrong; names the file and the reason.
            UnknownVersion: there is no such folder (any more).
            StoreUnavailable: the operating system refused to read or lock a file, or memory ran out.
        """
        if verify not in ("full", "sizes"):
            raise ValueError(f"verify is {verify!r}, expected full or sizes")
        lock, manifest = _locked(folder, lock_seconds)
        try:
            with blaming_the_system():
                _check_files(folder, manifest)
                if verify == "full":
                    _check_digests(folder, manifest)
                    # Mapped on its own and let go: what a check has touched does not stay resident.
                    check_structure(_mapped(folder, manifest))
                return cls(folder, manifest, lock)
        except BaseException:
            lock.release()
            raise

    @property
    def id(self) -> str:
        """The content hash that every answer names."""
        return self.manifest.snapshot

    @property
    def rounding_error(self) -> float | None:
        """Largest measured difference of an embedding or logit from the full-precision answer; None: states are not rounded.

        Logits of known nodes are not affected: they are stored from before the rounding.
        """
        return None if self.manifest.sizes.states == "float32" else max(self.manifest.states_error.values())

    @property
    def onnx_path(self) -> Path | None:
        return self.folder / ONNX if ONNX in self.manifest.files else None

    def known(self, nodes: NDArray[np.int64]) -> Answers:
        """Answers for rows of the graph."""
        return Answers(self.model.known(self.states, self.sums, nodes).embeddings, self.known_logits(nodes))

    def known_logits(self, nodes: NDArray[np.int64]) -> NDArray[np.float32]:
        """What the full-graph forward said of rows of the graph: they are read, whatever engine computes the rest."""
        return np.asarray(self._logits.take(checked_ids(nodes, self.states.num_nodes), axis=0))

    def extended(self, new: NewNodes, mode: Mode = "exact", max_recompute: int | None = None) -> ExtendedAnswers:
        """Answers for nodes that the graph does not have."""
        return extend(self.model, self.states, self.sums, self.adjacency, new, mode, max_recompute)

    def replay(self) -> dict[str, float]:
        """Its own answers to its probes: by name, how far they are from the full-graph forward's. Raises ProbeError."""
        return self.probes.replay(self, self.manifest.probe_tolerance)

    def close(self) -> None:
        """Gives up the hold against pruning. Arrays that somebody still refers to stay readable."""
        self._lock.release()
        self._arrays = {}

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _node_ids(self) -> NodeIds | None:
        return NodeIds(self._arrays[NODE_IDS], self._arrays[NODE_ORDER]) if NODE_IDS in self._arrays else None


def _locked(folder: Path, seconds: float) -> tuple[SharedLock, Manifest]:
    """A shared lock on the manifest of the folder that exists *now*: pruning may move it away while it is being opened."""
    handle = open_ordinary(folder, MANIFEST)
    with blaming_the_system(MANIFEST):
        lock = SharedLock(handle, folder / MANIFEST, seconds)
    try:
        if not _is_there(folder / MANIFEST, handle):
            raise UnknownVersion(f"version {folder.name} of {folder.parent.name} was removed")
        return lock, Manifest.from_json(read_open(handle, MANIFEST, MAX_MANIFEST_BYTES + 1))
    except BaseException:
        lock.release()
        raise


def _is_there(path: Path, handle: int) -> bool:
    with blaming_the_system(path.name):
        try:
            return os.path.samestat(os.fstat(handle), path.stat())
        except FileNotFoundError:
            return False


def read_manifest(folder: Path) -> Manifest:
    """The manifest alone: its own hash is verified, its files are not. Takes no lock, so it never waits."""
    return Manifest.from_json(read_ordinary(folder, MANIFEST, MAX_MANIFEST_BYTES + 1))


def read_listed(folder: Path, manifest: Manifest, name: str) -> bytes:
    """One file that the manifest lists, verified; nothing else is read, and no lock is taken."""
    entry = manifest.files[name]
    content = read_ordinary(folder, name, entry.size + 1)
    if len(content) != entry.size or hashlib.sha256(content).hexdigest() != entry.sha256:
        raise SnapshotError(name, CHANGED)
    return content


def _mapped(folder: Path, manifest: Manifest) -> dict[str, NDArray[Any]]:
    specs = array_specs(manifest.config, manifest.sizes)
    return {name: npy.open_mapped(folder, name, spec) for name, spec in specs.items()}


def _check_files(folder: Path, manifest: Manifest) -> None:
    """Exactly the listed files, each an ordinary one of its listed size."""
    found = dict(_entries(folder))
    if missing := sorted(manifest.files.keys() - found.keys()):
        raise SnapshotError(missing[0], "is missing")
    if extra := sorted(found.keys() - manifest.files.keys() - {MANIFEST}):
        raise SnapshotError(extra[0], "is not in the manifest")
    for name, entry in manifest.files.items():
        if found[name] != entry.size:
            raise SnapshotError(name, f"is {found[name]:,} bytes long, the manifest says {entry.size:,}")


def _entries(folder: Path, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Every file below the folder with its size; what is neither a file nor one of the two folders is refused."""
    with os.scandir(folder) as entries:
        for entry in entries:
            name, status = prefix + entry.name, entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                if name not in FOLDERS:
                    raise SnapshotError(name, "is a folder that the format does not know")
                yield from _entries(Path(entry.path), f"{name}/")
            elif stat.S_ISREG(status.st_mode):
                yield name, status.st_size
            else:
                raise SnapshotError(name, "is not an ordinary file (a link, a pipe or a device)")


def _check_digests(folder: Path, manifest: Manifest) -> None:
    for name, digest in sha256_of_all(folder, manifest.files).items():
        if digest != manifest.files[name].sha256:
            raise SnapshotError(name, CHANGED)


@contextmanager
def _blaming(name: str) -> Iterator[None]:
    try:
        yield
    except (SgformerError, KeyError, ValueError) as error:
        raise SnapshotError(name, str(error)) from error
