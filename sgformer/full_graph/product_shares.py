"""The rows whose sparse products a process computes, if the processes share memory: equally many entries in each.

The ranges of a shard are equally many rows, for which everything else takes equally long. So a process computes the products
of some rows of other ranges, and shared memory hands them over to the processes of these ranges.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from sgformer.full_graph.shared_rows import map_shared_array
from sgformer.full_graph.storage import OpenFile


class ProductShares:
    """Row numbers are those of the graph. All processes call the same methods in the same order."""

    def __init__(self, count: int, bounds: list[int], product_bounds: list[int], open_file: OpenFile) -> None:
        """`bounds`: those of the ranges of all processes; `product_bounds`: those of the rows that they multiply."""
        rank = dist.get_rank()
        own, products = ((ends[rank], ends[rank + 1]) for ends in (bounds, product_bounds))
        self.kept = max(own[0], products[0]), max(own[0], products[0], min(own[1], products[1]))
        """The rows of the range whose products this process computes."""
        self.given = _without(products, own)
        """The rows of other ranges whose products it computes."""
        self.received = _without(own, products)
        """The rows of its range whose products other processes compute."""
        self._count, self._open_file = count, open_file
        self._arrays: dict[Any, NDArray[Any]] = {}

    def array(self, width: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """The products of all rows, of which only those that are handed over have been computed."""
        key = width, dtype
        if key not in self._arrays:
            self._arrays[key] = map_shared_array(self._open_file, (self._count, width), dtype)
        return self._arrays[key]

    def announce(self) -> dist.Work:
        """Tells the others that the products of `given` are written. Those of `received` are once `wait` has returned."""
        return dist.barrier(async_op=True)  # type: ignore[no-any-return]  # torch's stub


def _without(rows: tuple[int, int], others: tuple[int, int]) -> list[tuple[int, int]]:
    """The ranges of `rows` that are not in `others`."""
    parts = (rows[0], min(rows[1], others[0])), (max(rows[0], others[1]), rows[1])
    return [(start, stop) for start, stop in parts if start < stop]
