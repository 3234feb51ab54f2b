"""The logged changes of a model's graphs, and which versions contain them.

A version contains the changes of its graph up to a sequence. When it goes live, the service applies the later ones from the
log of the graph. So activating a newer or older version over the same graph loses no change.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from model_store.errors import ChangesMissing, RecordsPruned
from model_store.format.manifest import Manifest
from model_store.graph_log.address import LogAddress
from model_store.graph_log.log import GraphLog
from model_store.live_graph.live_graph import graph_of


class LoggedChanges:
    def __init__(self, model: Path, redis: dict[str, Any] | None = None) -> None:
        """`model` is the folder of the model; for `redis`, see `LogAddress`."""
        self._model, self._redis = model, redis

    def require_same_graph(self, live: Manifest, new: Manifest | str) -> None:
        """Raises ChangesMissing if the graph of `live` has changes, and `new` (a manifest or an id) has another graph."""
        live_graph, graph = graph_of(live)[0], new if isinstance(new, str) else graph_of(new)[0]
        if live_graph == graph:
            return
        with closing(self._log(live_graph)) as log:
            count = log.position().sequence
        if count:
            raise ChangesMissing(
                f"the live graph ({live_graph[:16]}) has {count:,} change(s) that a version over other data ({graph[:16]}) "
                "does not have, and which would no longer be served. Train or refresh with --data live to keep them, or "
                "activate with --discard-changes (over HTTP: discard_changes)"
            )

    def require_replay(self, version: int, manifest: Manifest) -> None:
        """Raises RecordsPruned if the log begins after the changes that the version contains."""
        graph, sequence = graph_of(manifest)
        with closing(self._log(graph)) as log:
            first = log.start().position.sequence + 1
        if sequence + 1 < first:
            raise RecordsPruned(
                f"version {version} contains the changes up to {sequence:,}, the log of its graph begins with {first:,}: "
                "the changes in between are only in newer versions; train or refresh with --data live"
            )

    def prune(self, before: Mapping[int, Manifest], removed: list[int]) -> None:
        """Removes the records that all remaining versions contain, and the logs of graphs without a version.

        `before` has the manifests of all versions before the removal of `removed`.
        """
        needed: dict[str, int] = {}
        for version, manifest in before.items():
            graph, sequence = graph_of(manifest)
            if version not in removed:
                needed[graph] = min(sequence, needed.get(graph, sequence))
        for graph in {graph_of(manifest)[0] for manifest in before.values()}:
            with closing(self._log(graph)) as log:
                if graph not in needed:
                    log.remove()
                elif needed[graph]:
                    log.prune(needed[graph])

    def _log(self, graph: str) -> GraphLog:
        return LogAddress(self._model, graph, self._redis).open()
