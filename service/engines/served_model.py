"""A version in service: its snapshot, its engine, and the number of its users."""

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
    """A request calls `acquire` before it uses the model and `release` after. The last release after `retire` closes it."""

    def __init__(self, version: int, snapshot: Snapshot, engine: Engine, seconds: dict[str, float]) -> None:
        manifest = snapshot.manifest
        self.version, self.snapshot, self.engine = version, snapshot, engine
        self.engine_name, self.merges = engine.name, engine.merges
        self.name, self.id = manifest.model, snapshot.id
        self.config, self.classes = manifest.config, manifest.classes
        self.num_nodes, self.rounding_error = manifest.sizes.nodes, snapshot.rounding_error
        self.seconds = seconds
        """The durations of opening, warming up and replaying the probes."""
        self.origin = {"model": self.name, "version": version, "snapshot": self.id}
        """The fields by which every answer names its version."""
        if self.rounding_error is not None:
            self.origin["rounding_error"] = self.rounding_error
        self._derived: dict[Any, Any] = {}
        self._lock = threading.Lock()
        self._users = 1  # the roll-out, until it retires the model

    def acquire(self) -> ServedModel:
        with self._lock:
            self._users += 1
        return self

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            is_unused = self._users == 0
        if is_unused:
            self.snapshot.close()
            del self.engine  # the engine has the last references to the memory maps

    def retire(self) -> None:
        """Called once, when no new request will use the model."""
        self.release()

    def derive(self, make: Callable[[ServedModel], Derived]) -> Derived:
        """`make(self)`, computed once for this version."""
        if make not in self._derived:
            self._derived[make] = make(self)
        value: Derived = self._derived[make]
        return value

    def rows(self, ids: Sequence[int | str]) -> NDArray[np.int64]:
        """The rows of nodes by the ids that requests use. Raises UnknownNodeError."""
        if self.snapshot.node_ids is not None:
            return self.snapshot.node_ids.rows(ids)
        try:
            rows = np.frombuffer(array("q", ids), dtype=np.int64)  # type: ignore[type-var]  # it raises TypeError for strings
            if rows.view(np.uint64).max() < self.num_nodes:  # as unsigned, a negative number is a large one
                return rows
        except (TypeError, OverflowError):
            pass
        unknown = next(node for node in ids if type(node) is not int or not 0 <= node < self.num_nodes)
        expected = f"expected ids from 0 to {self.num_nodes - 1}"
        raise UnknownNodeError(f"node {unknown!r} is not in the graph, {expected}", unknown)

    def exactness(self, mode: Mode, computed: bool = True) -> Exactness:
        """The exactness that an answer states. Answers computed from half-precision states are rounded; logits of known
        nodes are stored as the full-graph forward gave them.
        """
        return "rounded" if mode == "exact" and computed and self.rounding_error is not None else mode

    def known(self, rows: NDArray[np.int64], embeddings: bool) -> Answers:
        """Answers for rows of the graph. Without embeddings nothing is computed: the logits are read."""
        if embeddings:
            return self.engine.known(rows)
        return Answers(np.empty((len(rows), 0), dtype=np.float32), self.snapshot.known_logits(rows))


def load(versions: ModelVersions, version: int, settings: Settings) -> ServedModel:
    """Opens and verifies a version, warms up its engine, and validates the engine against the probes.

    Raises:
        SnapshotError, ProbeError: this version is wrong.
        Exception: this worker cannot load the version now, which says nothing about the version.
    """
    times = [time.perf_counter()]
    snapshot = versions.open(version)
    try:
        times.append(time.perf_counter())
        engine = engine_for(snapshot, settings.backend, settings.device)
        times.append(time.perf_counter())
        snapshot.probes.replay(engine, snapshot.manifest.probe_tolerance)
    except BaseException:
        snapshot.close()
        raise
    times.append(time.perf_counter())
    with suppress(OSError, AttributeError):  # other C libraries have no such function
        ctypes.CDLL(None).malloc_trim(0)  # verifying uses 8 MB for a million nodes, which malloc would keep
    durations = zip(("open and verify", "engine", "warm and probes"), np.diff(times).round(4).tolist(), strict=True)
    return ServedModel(version, snapshot, engine, dict(durations))
