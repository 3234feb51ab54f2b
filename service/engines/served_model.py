"""A served model: a version with its snapshot, its engine, the live graph, and a count of the requests that use it.

Until the graph changes, the engine answers, and the logits of known nodes are read from the snapshot. Then the live graph
answers, with numpy: a change affects the answers for all nodes.
"""

from __future__ import annotations

import ctypes
import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from model_store import ModelVersions, Snapshot
from model_store.errors import LocalCopyError
from model_store.graph_log import LogAddress
from model_store.live_graph.live_graph import LiveGraph, graph_of
from model_store.live_graph.operations import Operation
from model_store.structural import structural_of
from model_store.versions.local_copies import LocalCopies
from service.engines.engine import Engine, engine_for, ignoring_overflow
from service.engines.logits_memo import LogitsMemo
from service.redis_connection import graph_log_options
from service.settings import Settings
from sgformer import Answers, ExtendedAnswers, NewNodes
from sgformer.adjacency import NeighborLists
from sgformer.request_time.extension import Mode

LOG = logging.getLogger("service.engines.served_model")
Exactness = Literal["exact", "frozen", "rounded"]
Derived = TypeVar("Derived")
REFRESHED_ENTRIES = 2048
"""`refresh` reads about this many adjacency entries per call: a millisecond for 64 hidden units."""
SEARCHED_ROWS = 1000
"""`first_ids` looks at the first rows only: a graph may begin with many removed nodes."""
_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,18}")


class ServedModel:
    """A request calls `acquire` before it uses the model and `release` after. The last release after `retire` closes it."""

    def __init__(
        self, version: int, snapshot: Snapshot, engine: Engine, seconds: dict[str, float], log: LogAddress | None = None
    ) -> None:
        manifest = snapshot.manifest
        self.version, self.snapshot, self.engine = version, snapshot, engine
        self.engine_name, self.batch_invariant = engine.name, engine.batch_invariant
        self.name, self.id = manifest.model, snapshot.id
        self.config, self.classes = manifest.config, manifest.classes
        self.class_names = self.classes or tuple(map(str, range(self.config.out_features)))
        """The names of the classes, or their numbers as text. For regression, the numbers of the outputs."""
        self.schema, self.structural = manifest.features, structural_of(manifest.reading)
        self.live, self.rounding_error = LiveGraph(snapshot), snapshot.rounding_error
        self.memo = LogitsMemo(self.live.graph)
        self.log = LogAddress(snapshot.folder.parent, self.live.id) if log is None else log
        """The log of the changes of the graph."""
        self.seconds = seconds
        """The durations of opening and verifying, of making the engine, and of replaying the probes, which warms it up."""
        self.origin = {"model": self.name, "version": version, "snapshot": self.id}
        """The fields of every answer that name its version."""
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
            self.live.graph.close()
            if "unchanged" in vars(self):
                self.unchanged.live.graph.close()
                del self.unchanged.engine, self.unchanged
            del self.engine  # the engine has the last references to the memory maps

    def retire(self) -> None:
        """Ends the use by the roll-out. Called once, when no further request can acquire the model."""
        self.release()

    def derive(self, make: Callable[[ServedModel], Derived]) -> Derived:
        """`make(self)`, computed once for this version."""
        if make not in self._derived:
            self._derived[make] = make(self)
        value: Derived = self._derived[make]
        return value

    def rows(self, ids: Sequence[int | str]) -> NDArray[np.int64]:
        """The rows of nodes by the ids that requests use. Raises UnknownNodeError."""
        return self.live.rows(ids) if self.is_changed else self.snapshot.rows(ids)

    @property
    def is_changed(self) -> bool:
        """True if the graph has changed since the snapshot."""
        return self.live.graph.version > 0

    @property
    def num_nodes(self) -> int:
        return self.live.num_nodes

    @property
    def num_rows(self) -> int:
        """The number of rows of the graph, including those of removed nodes."""
        return self.live.num_rows

    @property
    def adjacency(self) -> NeighborLists:
        return self.live.graph.adjacency if self.is_changed else self.snapshot.adjacency

    def node_id(self, text: str) -> int | str:
        """The id that a path names: a number if the ids of the graph are numbers, and the text is one."""
        has_numbers = self.snapshot.node_ids is None or self.snapshot.node_ids.dtype == "<i8"
        return int(text) if has_numbers and _NUMBER.fullmatch(text) else text

    def names(self, rows: NDArray[np.int64]) -> list[int | str]:
        """The ids of rows: the inverse of `rows`."""
        return self.live.ids(rows.tolist())

    def first_ids(self, count: int) -> list[int | str]:
        """The ids of the first nodes that are not removed, among the first SEARCHED_ROWS rows."""
        rows = np.arange(min(SEARCHED_ROWS, self.num_rows))
        return self.names(rows[~self.live.graph.adjacency.is_removed(rows)][:count])

    def exactness(self, mode: Mode, computed: bool = True) -> Exactness:
        """The exactness of an answer. Answers that are computed from half-precision states are rounded; logits of known
        nodes that are read from the snapshot (`computed` is False) are not.
        """
        computed = computed or self.is_changed
        return "rounded" if mode == "exact" and computed and self.rounding_error is not None else mode

    @property
    def sequence(self) -> int:
        """The sequence of the last change of the graph that answers contain."""
        return self.live.position.sequence

    def origin_at(self, sequence: int) -> dict[str, Any]:
        """The fields of an answer that name its version and, if the graph has ever changed, the last change."""
        return self.origin | {"sequence": sequence} if sequence else self.origin

    def known(self, rows: NDArray[np.int64], embeddings: bool) -> Answers:
        """Answers for rows of the graph; without `embeddings`, only logits, which are read if the graph has not changed."""
        if self.is_changed and embeddings:
            return self.live.graph.known(rows)
        if embeddings:
            return self.engine.known(rows)
        logits = self.memo.read(rows, self._logits_now) if self.is_changed else self.snapshot.known_logits(rows)
        return Answers(np.empty((len(rows), 0), dtype=np.float32), logits)

    def known_cost(self, rows: NDArray[np.int64]) -> int:
        """One unit per row and neighbour that `known` reads in a graph that has changed."""
        if len(rows) == 1:  # the usual request; a sum would take ten times as long
            return self.live.graph.adjacency.degree(int(rows[0])) + 1
        return int(np.add.reduce(self.adjacency.degrees(rows))) + len(rows)

    def refresh(self, rows: NDArray[np.int64]) -> bool:
        """Computes some of the stale states that answers read (`ChangingGraph.refresh`): a millisecond of work.

        Returns False if it has to be called again before the answers are computed.
        """
        return self.live.graph.refresh(rows, REFRESHED_ENTRIES)

    def _logits_now(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = self.live.graph.known(rows).logits
        return logits

    def extended(self, new: NewNodes, mode: Mode, max_recompute: int | None) -> ExtendedAnswers:
        """Answers for new nodes. The graph may have changed since their neighbours were validated."""
        if not self.is_changed:
            return self.engine.extended(new, mode, max_recompute)
        with ignoring_overflow():
            return self.live.graph.extended(replace(new, num_nodes=self.num_rows), mode, max_recompute)

    def assuming(self, operations: Sequence[Operation]) -> ServedModel:
        """This version over the graph after these operations, which are not kept. Valid until the graph changes; the caller
        has acquired this model and does not release the copy. Raises OperationError.
        """
        assumed = copy(self)
        assumed.live = self.live.assuming(operations)
        assumed.memo = LogitsMemo(assumed.live.graph)
        return assumed

    @cached_property
    def unchanged(self) -> ServedModel:
        """This version over the graph of its snapshot. For threads: only the event loop may read the live graph."""
        unchanged = copy(self)
        unchanged.live = LiveGraph(self.snapshot)
        unchanged.memo = LogitsMemo(unchanged.live.graph)
        return unchanged


def load(versions: ModelVersions, version: int, settings: Settings) -> ServedModel:
    """Opens and verifies a version, makes its engine, and replays the probes, which validates the version and warms it up.

    Raises:
        SnapshotError, ProbeError: this version is wrong.
        Exception: this worker cannot load the version now, which says nothing about the version.
    """
    times = [time.perf_counter()]
    snapshot = _open(versions, version, settings.local_cache)
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
    log = LogAddress(versions.folder, graph_of(snapshot.manifest)[0], graph_log_options(settings))
    return ServedModel(version, snapshot, engine, dict(durations), log)


def _open(versions: ModelVersions, version: int, local_cache: Path | None) -> Snapshot:
    """Opens the local copy of a version, if there is a folder for copies; else the version in the store."""
    if local_cache is not None:
        try:
            return LocalCopies(local_cache, versions).open(version)
        except LocalCopyError as error:
            LOG.warning("version %s is opened in the store, whose stalls may then delay answers: %s", version, error)
    return versions.open(version)
