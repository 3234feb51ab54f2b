"""An edge list before it becomes an undirected graph: counts of what the graph does not keep, and the refusal of weights.

numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sgformer.errors import GraphError


@dataclass(frozen=True)
class EdgeListCounts:
    """Counts of an edge list. `Adjacency.from_edges` reads it as undirected, and drops repeats and self-loops."""

    entries: int
    """The length of the list: in an undirected graph, an edge may have one entry, or one in each direction."""
    one_way: int
    """Edges that are given in one direction only."""
    repeated: int
    """Entries that repeat an entry of the same direction."""
    self_loops: int

    @property
    def symmetric(self) -> bool:
        """True if every edge is given once in each direction, as libraries of graph networks expect undirected graphs."""
        return not self.one_way and not self.repeated

    def __str__(self) -> str:
        """What distinguishes the list from an undirected graph without repeats."""
        counts = ((self.one_way, "in one direction only"), (self.repeated, "repeated"), (self.self_loops, "self-loops"))
        return ", ".join(f"{count:,} {name}" for count, name in counts if count)


def refuse_edge_values(name: str, values: Any) -> None:
    """Raises GraphError unless every value of the edges is 1: the model has no weights or features of edges."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiub" or not (array == 1).all():
        raise GraphError(
            f"{name} has values of edges, which this model does not use: edges have no weights and no features; "
            f"remove {name} to use the edges alone"
        )
