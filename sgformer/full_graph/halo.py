"""The halo of a range of rows: the neighbours in the ranges of other processes, which send their states.

An exchange has rounds, so that memory holds a bounded part of a halo, which may be as large as the graph.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from sgformer.adjacency import Adjacency
from sgformer.full_graph import collectives
from sgformer.full_graph.collectives import all_gather, exchange, parts_of, row_count, world_size
from sgformer.full_graph.storage import OpenFile, new_array

NUMBERED_ENTRIES = 4_000_000
"""Most adjacency entries that are numbered at once."""


class Halo:
    """The columns of a range of rows: first the rows of the range, then those of its halo. All processes make one, and call
    `extended` equally often.
    """

    def __init__(self, adjacency: Adjacency, bounds: list[int], open_file: OpenFile) -> None:
        """`bounds`: those of the ranges of all processes. `open_file`: for arrays that may exceed memory."""
        self._bounds, self._open_file = bounds, open_file
        self._start, stop = bounds[dist.get_rank() : dist.get_rank() + 2]
        start = self._start
        first, last = adjacency.indptr[[start, stop]].tolist()
        entries = [slice(begin, min(begin + NUMBERED_ENTRIES, last)) for begin in range(first, last, NUMBERED_ENTRIES)]
        is_needed = np.zeros(adjacency.num_nodes, dtype=bool)
        for part in entries:
            is_needed[adjacency.indices[part]] = True
        is_needed[start:stop] = False
        self._rows = np.flatnonzero(is_needed)
        column_of = np.zeros(adjacency.num_nodes, dtype=adjacency.indices.dtype)
        column_of[start:stop] = np.arange(stop - start)
        column_of[self._rows] = stop - start + np.arange(len(self._rows))
        self.columns = new_array(open_file, (last - first,), column_of.dtype)
        """The neighbours of the rows of the range, as columns."""
        for part in entries:
            self.columns[part.start - first : part.stop - first] = column_of[adjacency.indices[part]]
        self.degrees = np.concatenate([np.diff(adjacency.indptr[start : stop + 1]), adjacency.degrees(self._rows)])
        """Of the nodes of all columns."""
        self._buffers: dict[Any, NDArray[Any]] = {}

    def extended(self, states: NDArray[Any]) -> NDArray[Any]:
        """The states of all columns, of which `states` are those of the range. The next call overwrites the result."""
        width = states.shape[1]
        key = (width, states.dtype)
        if key not in self._buffers:
            self._buffers[key] = new_array(self._open_file, (len(self.degrees), width), states.dtype)
        result = self._buffers[key]
        result[: len(states)] = states
        part = max(1, collectives.EXCHANGED_ROWS // world_size())
        for first in range(0, self._largest_part, part):
            sent, received = (parts_of(counts, first, part) for counts in (self._sent_counts, self._received_counts))
            rows = torch.from_numpy(states[np.concatenate([self._sent_rows[rows] for rows in sent])])
            sizes = [*map(row_count, received)]
            answers = exchange(rows, [*map(row_count, sent)], sizes, width).cpu().numpy()
            for place, answer in zip(received, np.split(answers, np.cumsum(sizes)[:-1]), strict=True):
                result[len(states) :][place] = answer
        return result

    @cached_property
    def _received_counts(self) -> list[int]:
        """Rows of the halo by the process that computes them."""
        return [int(count) for count in np.diff(np.searchsorted(self._rows, self._bounds))]

    @cached_property
    def _largest_part(self) -> int:
        """The most rows that one process sends to another, over all processes, which therefore make equally many rounds."""
        return max(int(part) for part in all_gather(torch.tensor([max(self._received_counts)])))

    @cached_property
    def _sent_counts(self) -> list[int]:
        counts = torch.tensor(self._received_counts)
        return exchange(counts, [1] * len(counts), [1] * len(counts)).tolist()

    @cached_property
    def _sent_rows(self) -> NDArray[np.int64]:
        """Rows of this range that other processes need, by process."""
        wanted = exchange(torch.from_numpy(self._rows), self._received_counts, self._sent_counts)
        return wanted.cpu().numpy() - self._start
