"""The logits of known nodes of a graph that has changed, kept until it changes again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sgformer import ChangingGraph
from sgformer.live.row_table import RowTable

MIN_CALLS = 32
"""Logits are kept after this many calls without a change: under steady changes, kept logits would never be read."""
MAX_ROWS = 100_000
Rows = NDArray[np.int64]


class LogitsMemo:
    """Every change affects the answers for all nodes, so a change drops all logits."""

    def __init__(self, graph: ChangingGraph) -> None:
        self._graph, self._version, self._calls = graph, graph.version, 0
        self._table: RowTable | None = None

    def missing(self, rows: Rows) -> Rows:
        """The rows whose logits are not kept."""
        table = self._current()
        return rows if table is None else rows[table.slots(rows) < 0]

    def read(self, rows: Rows, compute: Callable[[Rows], NDArray[np.float32]]) -> NDArray[np.float32]:
        """The logits of these rows. `compute` computes those that are not kept."""
        self._calls += 1
        table = self._current()
        if table is None:
            return compute(rows)
        slots = table.slots(rows)
        if (missing := slots < 0).any():
            new = np.unique(rows[missing])
            if len(table) + len(new) > MAX_ROWS:
                return compute(rows)
            table.put(new, compute(new))
            slots = table.slots(rows)
        logits: NDArray[np.float32] = table.column(0)[slots]
        return logits

    def _current(self) -> RowTable | None:
        """The kept logits; None until MIN_CALLS calls without a change of the graph."""
        if self._version != self._graph.version:
            self._version, self._calls, self._table = self._graph.version, 0, None
        elif self._table is None and self._calls > MIN_CALLS:
            width = self._graph.model.config.out_features
            self._table = RowTable(self._graph.adjacency.num_nodes, ((width,), np.float32))
        return self._table
