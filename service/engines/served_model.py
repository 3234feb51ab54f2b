"""A version in service: its snapshot, its engine, and the number of requests that use it."""

from __future__ import annotations

import ctypes
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from model_store import ModelVersions, Snapshot
from service.engines.engine import Engine, engine_for
from service.settings import Settings
from sgformer import Answers, UnknownNodeError
from sgformer.request_time.extension import Mode

Exactness = Literal["exact", "frozen", "rounded"]
Derived = TypeVar("Derived")


class ServedModel:
    """A request calls `acquire` before it uses the model and `release` after. Once retired, the last release closes it."""

    def __init__(self, version: int, snapshot: Snapshot, engine: Engine, seconds: dict[str, float]) -> None:
        manifest = snapshot.manifest
        self.version, self.snapshot, self.engine = version, snapshot, engine
        self.engine_name, self.merges = engine.name, engine.merges
        self.name, self.id = manifest.model, snapshot.id
        self.config, self.classes = manifest.config, manifest.classes
        self.num_nodes, self.rounding_error = manifest.sizes.nodes, snapshot.rounding_error
        self.seconds = seconds
        """How long opening, warming up and the probes took."""
        self.origin = {"model": self.name, "version": version, "snapshot": self.id}
        """The fields by which every answer names its version."""
        if self.rounding_error is not None:
            self.origin["rounding_error"] = self.rounding_error
        self._derived: dict[Any, Any] = {}
        self._lock = threading.Lock()
        self._users, self._retired = 0, False

    def acquire(self) -> ServedModel:
        with self._lock:
            self._users += 1
        return self

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            done = self._retired and self._users == 0
        if done:
            self._close()

    def retire(self) -> None:
        """No new requests come; it is closed when the last one is done."""
        with self._lock:
            self._retired = True
            done = self._users == 0
        if done:
            self._close()

    def derive(self, make: Callable[[ServedModel], Derived]) -> Derived:
        """`make(self)`, computed once for this version."""
        if make not in self._derived:
            self._derived[make] = make(self)
        value: Derived = self._derived[make]
        return value

    def rows(self, ids: Sequence[int | str]) -> NDArray[np.int64]:
        """From ids, as requests have them, to rows. Raises UnknownNodeError."""
        if self.snapshot.node_ids is not None:
            return self.snapshot.node_ids.rows(ids)
        try:
            rows = np.frombuffer(array("q", ids), dtype=np.int64)  # type: ignore[type-var]  # texts are what it refuses
        except (TypeError, OverflowError):
            rows = None
        if rows is None or rows.view(np.uint64).max() >= self.num_nodes:  # a negative number is a large one there
            unknown = next(node for node in ids if type(node) is not int or not 0 <= node < self.num_nodes)
            expected = f"expected ids from 0 to {self.num_nodes - 1}"
            raise UnknownNodeError(f"node {unknown!r} is not in the graph, {expected}", unknown)
        return rows

    def exactness(self, mode: Mode, computed: bool = True) -> Exactness:
        """The exactness that an answer states. Answers computed from half-precision states are rounded; logits of known
        nodes are stored as the full-graph forward gave them.
        """
        return "rounded" if mode == "exact" and computed and self.rounding_error is not None else mode

    def known(self, rows: NDArray[np.int64], embeddings: bool) -> Answers:
        """Answers for rows of the graph. Without embeddings, nothing is computed: the logits are read."""
        if embeddings:
            return self.engine.known(rows)
        return Answers(np.empty((len(rows), 0), dtype=np.float32), self.snapshot.known_logits(rows))

    def _close(self) -> None:
        self.snapshot.close()
        # The engine holds the maps: without it the last reference to them is gone.
        del self.engine


def load(versions: ModelVersions, version: int, settings: Settings) -> ServedModel:
    """Opens, verifies, warms and replays the probes on the engine that will serve.

    Raises:
        SnapshotError, ProbeError: this version is wrong, and why.
        Exception: anything else says nothing about the version: this worker cannot load it now.
    """
    seconds: dict[str, float] = {}
    snapshot = _timed(seconds, "open and verify", lambda: versions.open(version))
    try:
        engine = _timed(seconds, "engine", lambda: engine_for(snapshot, settings.backend, settings.device))
        _timed(seconds, "warm and probes", lambda: snapshot.probes.replay(engine, snapshot.manifest.probe_tolerance))
    except BaseException:
        snapshot.close()
        raise
    _give_memory_back()
    return ServedModel(version, snapshot, engine, seconds)


def _give_memory_back() -> None:
    """Returns memory that verifying used, 8 MB for a million nodes, to the system: malloc would keep it."""
    with suppress(OSError, AttributeError):  # where the C library has no such call
        ctypes.CDLL(None).malloc_trim(0)


def _timed(seconds: dict[str, float], name: str, step: Any) -> Any:
    start = time.perf_counter()
    result = step()
    seconds[name] = round(time.perf_counter() - start, 4)
    return result
