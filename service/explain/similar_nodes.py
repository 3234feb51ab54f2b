"""The search for the known nodes whose embeddings are nearest to given embeddings, in the graph as it is now.

While the graph is as published, the stored embeddings are searched: all of them, or by the index of the snapshot. After a
change every embedding differs a little, because every node attends to all. In a small graph all embeddings are computed
again. In a large graph, the stored embeddings only give candidates. Then the current embeddings of the candidates, and of
the nodes that were added or changed, are compared.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.engines.served_model import ServedModel
from service.errors import Refusal
from sgformer.arrays.operations import Indices
from sgformer.nearest.lists import InvertedLists
from sgformer.nearest.scan import Nearest, nearest, unit_rows

SCANNED_NODES = 10_000
"""Most nodes whose embeddings are computed again after a change: all nodes of a small graph, else the last changed nodes."""


class SimilarNodes:
    """The search in one version, in the compute process. Raises Refusal (no_embeddings) if the snapshot has none."""

    def __init__(self, model: ServedModel) -> None:
        self._stored = stored_embeddings(model)
        self._lists: InvertedLists | None = model.snapshot.similar_lists
        index = (model.snapshot.manifest.embeddings or {}).get("index") or {}
        self._probes, self._recall = index.get("probes", 0), index.get("recall")
        self._scanned_at = -1
        self._scanned_rows, self._scanned_embeddings = np.empty(0, dtype=np.int64), self._stored[:0]

    def is_exact(self, model: ServedModel) -> bool:
        return model.num_rows <= SCANNED_NODES if model.is_changed else self._lists is None

    @property
    def recall(self) -> float | None:
        """The recall of the index, measured when the snapshot was published; None without an index."""
        return self._recall

    def unit_embeddings(self, model: ServedModel, rows: Indices) -> NDArray[Any]:
        """The unit embeddings of nodes in the graph as it is now."""
        return unit_rows(model.known(rows, True).embeddings) if model.is_changed else np.asarray(self._stored[rows])

    def search(self, model: ServedModel, queries: NDArray[Any], k: int) -> Nearest:
        if not model.is_changed:
            return self._search_stored(queries, k)
        self._scan(model)
        found = nearest(self._scanned_embeddings, queries, k, self._scanned_rows)
        if self.is_exact(model):
            return found
        candidates = np.setdiff1d(self._search_stored(queries, 4 * k + 16).rows, np.append(self._scanned_rows, -1))
        candidates = candidates[~model.live.graph.adjacency.is_removed(candidates)]
        if not len(candidates):
            return found
        return found.merged(nearest(self.unit_embeddings(model, candidates), queries, k, candidates), k)

    def _search_stored(self, queries: NDArray[Any], k: int) -> Nearest:
        lists = self._lists
        if lists is None:
            return nearest(self._stored, queries, k)
        found = [lists.nearest(self._stored, query[None], k, self._probes) for query in queries]
        width = max(part.rows.shape[1] for part in found)
        return Nearest(*(np.concatenate([_widened(part[field], width) for part in found]) for field in range(2)))

    def _scan(self, model: ServedModel) -> None:
        """Computes the embeddings of all nodes, or of the last changed ones, once per change of the graph."""
        if self._scanned_at == model.sequence:
            return
        graph = model.live.graph
        rows = graph.adjacency.live_rows() if self.is_exact(model) else graph.changed_rows()[-SCANNED_NODES:]
        self._scanned_rows, self._scanned_at = rows, model.sequence
        self._scanned_embeddings = self.unit_embeddings(model, rows) if len(rows) else self._stored[:0]


def stored_embeddings(model: ServedModel) -> NDArray[Any]:
    """Raises Refusal if the snapshot has none."""
    embeddings = model.snapshot.unit_embeddings
    if embeddings is None:
        problem = (
            f"version {model.version} was published without embeddings (snapshot format {model.snapshot.manifest.format})"
        )
        raise Refusal("no_embeddings", f"{problem}; publish it again, e.g. with sgf-train refresh")
    return embeddings


def _widened(part: NDArray[Any], width: int) -> NDArray[Any]:
    """Pads lists with -1: no row, at the lowest similarity."""
    missing = width - part.shape[1]
    return np.pad(part, ((0, 0), (0, missing)), constant_values=-1) if missing else part
