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
        """Returns the receiving rows (repeated), for each the position of its message, and the messages of all `rows`:
        first s' - s, for all current edges; then s, which new edges send in addition; then -s, for removed edges.

        Args:
            sources: the rows that exist after the change; they reach themselves and their `lists` of `degrees` neighbours.
        """
        messages = np.concatenate([self.after - self.before, self.before, -self.before])
        own, count = np.searchsorted(self.rows, sources), len(self.rows)
        edges = [(self.added, count), (self.removed, 2 * count)]
        targets = np.concatenate([sources, lists, *(directed.targets for directed, _ in edges)])
        over_edges = [start + np.searchsorted(self.rows, directed.sources) for directed, start in edges]
        positions = np.concatenate([own, np.repeat(own, degrees), *over_edges])
        if len(sources) == count:
            return targets, positions, messages
        exists = np.isin(targets, sources)  # a removed row receives nothing
        exists[: len(sources) + len(lists)] = True
        return targets[exists], positions[exists], messages
