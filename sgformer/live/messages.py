"""How a change of the graph changes what its nodes send into the first GCN layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sgformer.arrays.operations import Indices
from sgformer.live.changed_adjacency import DirectedEdges


@dataclass(frozen=True)
class MessageChanges:
    """A node sends s before the change and s' after it: its neighbour receives s' - s more if the edge stays, s' if the edge
    is new, and -s if the edge is removed. A node that does not exist sends zeros.
    """

    rows: Indices
    """Rows whose messages or edges changed, sorted."""
    before: NDArray[np.float64]
    after: NDArray[np.float64]
    added: DirectedEdges
    removed: DirectedEdges

    def sent_to(self, sources: Indices, lists: Indices, degrees: Indices) -> tuple[Indices, Indices, NDArray[np.float64]]:
        """Every row that receives a change, the positions of what it receives, and what there is to receive: for every
        row s' - s, for all its edges now; then s, which new edges add to it; then -s, for removed edges. Rows are repeated.

        Args:
            sources: the rows that exist after the change; they reach themselves and their `lists` of `degrees` neighbours.
        """
        rows_by_kind = np.concatenate([self.after - self.before, self.before, -self.before])
        at, count = np.searchsorted(self.rows, sources), len(self.rows)
        edges = [(self.added, count), (self.removed, 2 * count)]
        targets = np.concatenate([sources, lists, *(ends.targets for ends, _ in edges)])
        kinds = [start + np.searchsorted(self.rows, ends.sources) for ends, start in edges]
        messages = np.concatenate([at, np.repeat(at, degrees), *kinds])
        if len(sources) == count:
            return targets, messages, rows_by_kind
        exists = np.isin(targets, sources)  # a removed row receives nothing
        exists[: len(sources) + len(lists)] = True
        return targets[exists], messages[exists], rows_by_kind
